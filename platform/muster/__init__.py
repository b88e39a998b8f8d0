"""Launch, queue and observe PyTorch training: every pod of a job starts together, or none does."""

TYPE_CHECKING = False  # as type checkers know it; `typing` itself takes longer to import than all else here
if TYPE_CHECKING:
    from muster.program import report, should_stop
    from muster.sdk import Client

    __version__: str

__all__ = ["Client", "__version__", "report", "should_stop"]


def __getattr__(name: str) -> object:
    """Names are imported when a program first uses them, so that `import muster` stays quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from muster.version import version

        return version()
    if name == "Client":
        from muster.sdk import Client

        return Client
    from muster import program

    globals().update(report=program.report, should_stop=program.should_stop)
    return globals()[name]
