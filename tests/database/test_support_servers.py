"""The database tests run on the embedded PostgreSQL and on the distribution's.

A test with a version in its id runs on that version.
"""

from __future__ import annotations

import pytest

from tests.support.required_programs import system_postgres
from tests.support.servers import available_binaries


def test_database_is_of_the_version_that_the_test_is_named_for(postgres, database):
    [row] = database.execute("SHOW server_version_num")
    assert f"pg{int(row['server_version_num']) // 10000}" == postgres


@pytest.mark.program("postgres")
def test_distribution_server_is_tested_unless_the_embedded_one_has_its_version():
    tested = available_binaries()
    system = system_postgres()
    used = tested[f"pg{system.version}"]
    assert used == system or (used.source == "wheel" and used.version == system.version)
    assert next(iter(tested.values())).source == "wheel"
