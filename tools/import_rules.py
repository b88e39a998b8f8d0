"""An import-linter contract that lists all modules that a package may import.

The contracts of import-linter list forbidden modules, which does not cover modules that are added later.
"""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules


class AllowlistContract(Contract):
    """`modules` and their submodules may import each other and the modules in `may_import`, nothing else.

    A name in `may_import` includes its submodules. Only direct imports are checked.
    """

    type_name = "allowlist"

    modules = fields.ListField(subfield=fields.ModuleExpressionField())
    may_import = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect every import that is neither inside the package nor allowed."""
        importers = sorted(m.name for m in module_expressions_to_modules(graph, self.modules, as_packages=True))  # type: ignore[arg-type]
        allowed = [*importers, *self.may_import]  # type: ignore[misc]
        broken = [
            (importer, imported, detail["line_number"])
            for importer in importers
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not any(imported == name or imported.startswith(f"{name}.") for name in allowed)
            for detail in graph.get_import_details(importer=importer, imported=imported)
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each import that is not allowed."""
        for importer, imported, line in check.metadata["broken"]:
            output.print_error(f"{importer} line {line} imports {imported}", bold=False)
        output.print(f"Allowed: {', '.join(self.may_import)}")  # type: ignore[arg-type]
