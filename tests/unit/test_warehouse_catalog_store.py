"""Where a lake's catalog is kept, and that its address never holds a password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalogs.errors import CoralError, LakeError
from warehouse.catalog_store import CatalogStore, new_store, postgres_address, store_of


@pytest.mark.parametrize(
    "address",
    [
        "postgres:host=db dbname=coral password=hunter2",
        "postgres:host=db PASSWORD = 'hunter2'",
        "postgres://coral:hunter2@db/coral",
        "postgresql://coral:hunter2@db:5432/coral",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_CATALOG", address)
    with pytest.raises(CoralError, match=r"CORAL_CATALOG holds a password.*PGPASSWORD") as caught:
        new_store()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "given"),
    [
        ("postgres:host=db dbname=coral", "host=db dbname=coral"),
        ("postgres://coral@db:5432/coral", "postgres://coral@db:5432/coral"),
        ("postgresql://db/coral", "postgresql://db/coral"),
    ],
)
def test_libpq_forms_are_taken(address: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_CATALOG", address)
    assert postgres_address(Path("lake")) == given
    assert new_store().is_postgres


@pytest.mark.parametrize("address", ["mysql:host=db", "postgres:", "db"])
def test_another_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_CATALOG", address)
    with pytest.raises(CoralError, match="is no address of a catalog"):
        new_store()


def test_the_lake_says_which_kind_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_CATALOG", "postgres:host=db")
    assert store_of(tmp_path) == CatalogStore()
    (tmp_path / "lake.json").write_text(json.dumps({"schema_version": 1}))
    assert not store_of(tmp_path).is_postgres  # the variable is an address, not a choice, once a lake is there
    store = new_store()
    (tmp_path / "lake.json").write_text(json.dumps({"schema_version": 1, **store.document()}))
    assert store_of(tmp_path) == store
    assert f"METADATA_SCHEMA '{store.schema}'" in store.attach_sql(tmp_path, read_only=True)
    monkeypatch.delenv("CORAL_CATALOG")
    assert not new_store().is_postgres
    with pytest.raises(LakeError, match="CORAL_CATALOG does not say where"):
        store.attach_sql(tmp_path, read_only=True)
    (tmp_path / "lake.json").write_text(json.dumps({"catalog": "postgres", "catalog_schema": "x; DROP"}))
    with pytest.raises(LakeError, match="names no schema"):
        store_of(tmp_path)
