"""A contract for import-linter that says all that a room may import, where its own can only say what it may not.

A pure room stays pure only when every new import is a decision; a list of forbidden modules forgets the next one.
"""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules


class AllowlistContract(Contract):
    """`modules` and what lies in them import each other, and beyond that only what `may_import` names.

    A name in `may_import` stands for the module and all that lies in it. Only direct imports count: what an allowed
    module imports is that module's own affair.
    """

    type_name = "allowlist"

    modules = fields.ListField(subfield=fields.ModuleExpressionField())
    may_import = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect every import that is neither inside the room nor allowed."""
        room = sorted(m.name for m in module_expressions_to_modules(graph, self.modules, as_packages=True))  # type: ignore[arg-type]
        allowed = [*room, *self.may_import]  # type: ignore[misc]
        broken = [
            (importer, imported, detail["line_number"])
            for importer in room
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
