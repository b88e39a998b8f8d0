"""Why a run hung: which rank the others waited for."""
