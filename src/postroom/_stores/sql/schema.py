"""The schema as programs: which version is there, and what brings it up to date."""

from __future__ import annotations

from postroom._kernel.program import Program
from postroom._stores.sql.engines.base import Engine
from postroom._stores.sql.statements import DEFAULT_PREFIX, Script, Statement
from postroom.errors import SchemaMissing, SchemaOutdated, SchemaTooNew

_VERSIONS = "CREATE TABLE postroom_schema (version INTEGER NOT NULL PRIMARY KEY, name VARCHAR(100) NOT NULL)"
_APPLIED = "INSERT INTO postroom_schema (version, name) VALUES ({version}, '{name}')"

BREAKING = "breaking_"
"""What the name of a migration begins with if the version before it cannot use the tables afterwards. All others only
add, so that workers of the version before go on, and can be started, while an upgrade is rolled out."""


class SchemaPrograms:
    """The verbs of Schema, as programs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.newest = max(migration.version for migration in engine.migrations)

    @property
    def _command(self) -> str:
        """Which makes the tables that are missing, and no others."""
        schema = f" --schema {self.engine.schema}" if self.engine.schema else ""
        prefix = f" --prefix {self.engine.prefix}" if self.engine.prefix != DEFAULT_PREFIX else ""
        return f"postroom migrate{schema}{prefix}"

    def version(self) -> Program[int]:
        if not (yield Statement("has_schema")):
            return 0
        [(version,)] = yield Statement("schema_version")
        return int(version)

    def check(self) -> Program[None]:
        """Raises unless this version can use the tables; says what to do."""
        version = yield from self.version()
        if version == 0:
            raise SchemaMissing(
                f"this database has no {self.engine.tables}: call migrate() on the room once, "
                f"or run `{self._command}`, or open it with deploy_schema=True"
            )
        if version < self.newest:
            raise SchemaOutdated(
                f"the tables are at version {version}, this Postroom needs {self.newest}: "
                f"call migrate() on the room or run `{self._command}`"
            )
        yield from self._check_later(version)

    def _check_later(self, version: int) -> Program[None]:
        """Raises if a later version of the package made the tables, and this one cannot use them."""
        if version > self.newest:
            later = yield Statement("later_versions", {"version": self.newest})
            if any(name.startswith(BREAKING) for (name,) in later):
                raise SchemaTooNew(
                    f"the tables are at version {version}, this Postroom knows only {self.newest}: upgrade the package"
                )

    def migrate(self) -> Program[list[int]]:
        """Apply what is missing. Two of these cannot race: one waits for the other's lock."""
        yield Statement("lock_schema")
        version = yield from self.version()
        yield from self._check_later(version)
        for text in self.steps(version):
            yield Script(text)
        return [migration.version for migration in self.engine.migrations if migration.version > version]

    def script(self) -> str:
        """All of it, as text."""
        return "\n".join(f"{text.rstrip().rstrip(';')};\n" for text in self.steps())

    def steps(self, since: int = 0, to: int | None = None) -> list[str]:
        """The statements that bring the tables from one version to another, by default from nothing to the newest."""
        steps = [] if since else [*self.engine.preamble, self.engine.rename(_VERSIONS)]
        for migration in self.engine.migrations:
            if since < migration.version <= (to or self.newest):
                steps += self.engine.split(migration.text)
                applied = _APPLIED.format(version=migration.version, name=migration.name)
                steps.append(self.engine.rename(applied))
        return steps
