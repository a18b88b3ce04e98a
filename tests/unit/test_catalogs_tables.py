"""Every column of every catalog x every fault: one line with file, row, column, value and remedy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import COLUMNS, NAMES, NUMERIC, assert_one, read, sound_row, with_value

from catalogs.cells import Column
from catalogs.errors import InputError
from catalogs.gpus import GpuNames
from catalogs.tables import parse_table, read_table, schema_names, schema_of


@pytest.mark.parametrize("table", schema_names())
def test_sound_row_is_accepted(table: str) -> None:
    result = read(table, sound_row(table))
    assert result.findings == ()
    assert len(result.rows) == 1
    assert set(result.rows[0]) == {column.name for column in schema_of(table).columns}


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_blank(table: str, column: Column) -> None:
    result = with_value(table, column.name, "  ")
    if column.required == "yes":
        assert_one(result, column.name, "", "is blank", "give")
    else:
        assert result.findings == ()
        assert result.rows[0][column.name] is None


@pytest.mark.parametrize(("table", "column"), [c for c in COLUMNS if c.values[1].type in NUMERIC])
class TestNumbers:
    @pytest.mark.parametrize("text", ["NaN", "null", "-"])
    def test_only_blank_is_unknown(self, table: str, column: Column, text: str) -> None:
        assert_one(with_value(table, column.name, text), column.name, text, "is not a value", column.unit)

    def test_digits_that_only_python_reads(self, table: str, column: Column) -> None:
        for text in ("1_000", "١٢", "１２", "0x10", "1,5", "--5"):
            assert_one(with_value(table, column.name, text), column.name, text, "is not a plain number", "without unit")

    def test_overflow(self, table: str, column: Column) -> None:
        for text in ("1e999", "-1e999", "9" * 400):
            assert_one(with_value(table, column.name, text), column.name, text, "is not finite", column.unit)

    def test_infinite(self, table: str, column: Column) -> None:
        assert_one(with_value(table, column.name, "inf"), column.name, "inf", "is not finite", column.unit)

    def test_negative(self, table: str, column: Column) -> None:
        result = with_value(table, column.name, "-1")
        if column.low < 0:
            assert result.findings == ()
        else:
            assert_one(result, column.name, "-1", "is negative", column.unit)

    def test_zero(self, table: str, column: Column) -> None:
        result = with_value(table, column.name, "0")
        if (column.low > 0 and not column.or_zero) or (column.low == 0 and column.low_open):
            assert_one(result, column.name, "0", "is zero", column.unit)
        else:
            assert result.rows[0][column.name] == 0

    def test_wrong_unit(self, table: str, column: Column) -> None:
        for text in ("3 GB", "$3.00", "1,234"):
            assert_one(with_value(table, column.name, text), column.name, text, "is not a plain number", "without unit")

    def test_out_of_range_says_to_check_the_unit(self, table: str, column: Column) -> None:
        if column.high == float("inf"):
            assert with_value(table, column.name, "1e12").findings == ()
            return
        value = f"{column.high * 10:.0f}"
        result = with_value(table, column.name, value)
        assert_one(result, column.name, value, "is too high", *(["check the unit", column.unit] if column.unit else []))

    def test_text(self, table: str, column: Column) -> None:
        assert_one(with_value(table, column.name, "many"), column.name, "many", "is not a number", "number")


@pytest.mark.parametrize(("table", "column"), [c for c in COLUMNS if c.values[1].choices])
def test_unknown_choice(table: str, column: Column) -> None:
    almost = column.choices[0] + "x"
    assert_one(
        with_value(table, column.name, almost), column.name, almost, "is not an allowed value", column.choices[0]
    )


@pytest.mark.parametrize(("table", "column"), [c for c in COLUMNS if c.values[1].type in {"date", "timestamp", "flag"}])
def test_wrong_kind(table: str, column: Column) -> None:
    (finding,) = with_value(table, column.name, "30/07/2026").findings
    assert (finding.row, finding.column, finding.value) == (1, column.name, "30/07/2026")
    assert {"date": "2026-07-30", "timestamp": "2026-07-30T12:00:00Z", "flag": "0 or 1"}[column.type] in finding.remedy


@pytest.mark.parametrize(("table", "column"), [c for c in COLUMNS if c.values[1].type in {"date", "timestamp"}])
class TestDates:
    @pytest.mark.parametrize("text", ["2025-02-30", "20250501", "2025-W01-1", "1746057600", "2025-5-1", "٢٠٢٥-05-01"])
    def test_other_forms_and_days_not_in_the_calendar(self, table: str, column: Column, text: str) -> None:
        (finding,) = with_value(table, column.name, text).findings
        assert (finding.row, finding.column, finding.value) == (1, column.name, text)
        assert finding.reason.startswith("is not a") or finding.reason == "is a day that is not in the calendar"

    @pytest.mark.parametrize("day", ["0001-01-01", "1999-12-31", "2101-01-01", "9999-12-31"])
    def test_years_that_are_slips(self, table: str, column: Column, day: str) -> None:
        # With a zone these leave the calendar on the way to UTC.
        zones = ["T00:00:00+14:00", "T23:59:59-12:00"] if column.type == "timestamp" else []
        for text in (day, *(day + zone for zone in zones)):
            assert_one(
                with_value(table, column.name, text), column.name, text, "is not in the years 2000 to 2100", "2026"
            )


USER_TABLES = {"own_offers", "availability", "quotas", "demand", "measured_rates", "calibration", "efficiency"}


@pytest.mark.parametrize(
    ("table", "column"), [c for c in COLUMNS if c.values[0] in USER_TABLES and c.values[1].type in NUMERIC]
)
def test_numbers_of_own_files_are_bounded_on_both_sides(table: str, column: Column) -> None:
    assert column.high <= 1e8
    assert column.low >= 0
    tiny, tiniest = with_value(table, column.name, "1e-300"), with_value(table, column.name, "5e-324")
    if column.type == "integer":
        assert {f.reason for f in (*tiny.findings, *tiniest.findings)} == {"is not a whole number"}
    elif column.low > 0:
        assert_one(tiny, column.name, "1e-300", "is too low")
        assert_one(tiniest, column.name, "5e-324", "is too low")
    else:
        assert not column.low_open, "an open bound at 0 lets ratios overflow"


@pytest.mark.parametrize("count", ["129", "99999999999999999999", "9" * 5000, "0", "١"])
def test_node_configuration_of_a_count_that_no_machine_has(count: str) -> None:
    value = f"L40Sx{count}"
    assert_one(
        with_value("own_offers", "node_config", value), "node_config", value, "is not a node configuration", "128"
    )


@pytest.mark.parametrize("table", ["own_offers", "availability", "offers"])
def test_unknown_gpu_offers_close_matches(table: str) -> None:
    assert_one(with_value(table, "node_config", "L40Zx4"), "node_config", "L40Zx4", "unknown GPU", "did you mean L40S")
    assert_one(with_value(table, "node_config", "L40S"), "node_config", "L40S", "is not a node configuration", "L40Sx2")


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_missing_column(table: str, column: Column) -> None:
    row = sound_row(table)
    row.pop(column.name, None)
    result = read(table, row)
    if column.required == "no":
        assert result.findings == ()
        assert result.rows[0][column.name] is None
    else:
        (finding,) = result.file_findings
        assert (finding.row, finding.column, finding.reason) == (0, column.name, "the column is missing")
        assert finding.line().startswith(f"{table}.csv, {column.name}: the column is missing. To fix: add it")


@pytest.mark.parametrize("table", schema_names())
def test_unknown_column(table: str) -> None:
    result = read(table, {**sound_row(table), "colour": "red"})
    (finding,) = result.file_findings
    assert (finding.column, finding.reason) == ("colour", "unknown column")


def test_misnamed_column_is_matched_with_the_missing_one() -> None:
    row = sound_row("own_offers")
    row["price"] = row.pop("price_usd_per_h")
    (finding,) = read("own_offers", row).file_findings  # one slip is one fault
    assert (finding.column, finding.remedy) == ("price", "rename it to price_usd_per_h")


@pytest.mark.parametrize(
    ("table", "right", "wrong", "unit"),
    [
        ("own_offers", "price_usd_per_h", "price_eur_per_h", "USD/h"),
        ("demand", "demand_req_per_s", "demand_req_per_h", "req/s"),
    ],
)
def test_a_column_in_another_unit_is_not_to_be_renamed_as_it_is(table: str, right: str, wrong: str, unit: str) -> None:
    row = sound_row(table)
    row[wrong] = row.pop(right)
    (finding,) = read(table, row).file_findings
    assert finding.remedy == f"rename it to {right} if its values are in {unit}, else convert them too"


@pytest.mark.parametrize("given", ["own_offers", "availability", "demand", "fleet_state"])
@pytest.mark.parametrize("wanted", ["own_offers", "availability", "demand", "fleet_state"])
def test_a_file_of_another_feed_is_one_fault(given: str, wanted: str) -> None:
    names = [column.name for column in schema_of(given).columns]
    findings = parse_table(",".join(names) + "\n", wanted).file_findings
    # A fleet without templates and failed launches looks just like what can be had; `coral ingest fleet` says so.
    is_sound = given == wanted or (given, wanted) == ("availability", "fleet_state")
    said = {"own_offers": "prices", "fleet_state": "fleet state"}.get(given, given)
    assert [f.reason for f in findings] == ([] if is_sound else [f"has the columns of {said}"])


@pytest.mark.parametrize(("sign", "text"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_one_fault(sign: str, text: str) -> None:
    names = [column.name for column in schema_of("demand").columns]
    (finding,) = parse_table(sign.join(names) + "\n" + sign.join("x" * len(names)) + "\n", "demand").findings
    assert (finding.reason, finding.remedy) == (f"columns are separated by {text}", "separate them by commas")


@pytest.mark.parametrize("table", [t for t in schema_names() if schema_of(t).key])
def test_a_missing_key_column_makes_no_duplicates(table: str) -> None:
    """Rows that only that column told apart."""
    columns = schema_of(table).by_name
    name = next((name for name in schema_of(table).key if columns[name].required != "no"), None)
    row = sound_row(table)
    if name is None:
        pytest.skip("no column of the key is required")
    row.pop(name)
    result = read(table, row, row, row)
    assert [(f.column, f.reason) for f in result.findings] == [(name, "the column is missing")]


@pytest.mark.parametrize("table", [t for t in schema_names() if schema_of(t).key])
def test_duplicate(table: str) -> None:
    row = sound_row(table)
    result = read(table, row, row)
    (finding,) = result.findings
    assert (finding.row, finding.reason) == (2, "duplicate of row 1")
    assert finding.column == "+".join(schema_of(table).key)
    assert row[schema_of(table).key[0]] in finding.value
    assert len(result.rows) == 1


def test_every_fault_is_reported_at_once() -> None:
    row = sound_row("own_offers")
    bad = {**row, "price_usd_per_h": "", "market": "spots", "as_of": "soon", "instance_type": "b"}
    result = read("own_offers", row, bad, {**row, "node_config": "L41x2", "instance_type": "c"})
    assert [(f.row, f.column) for f in result.findings] == [
        (2, "market"),
        (2, "price_usd_per_h"),
        (2, "as_of"),
        (3, "node_config"),
    ]
    assert (len(result.rows), result.row_numbers, result.rows_seen) == (1, (1,), 3)
    with pytest.raises(InputError) as caught:
        result.require_clean()
    assert len(str(caught.value).splitlines()) == 4


def test_row_counts_are_kept_when_rows_are_dropped() -> None:
    """skypilot#4322: ten rows of which two lack a price give eight accepted and two with reasons."""
    rows = [{**sound_row("own_offers"), "instance_type": f"t{i}"} for i in range(10)]
    rows[3]["price_usd_per_h"] = rows[7]["price_usd_per_h"] = ""
    result = read("own_offers", *rows)
    assert (result.rows_seen, len(result.rows), [f.row for f in result.row_findings]) == (10, 8, [4, 8])


@settings(deadline=None, max_examples=150)
@given(
    st.text(alphabet='a,1."-#\n\r \x00é_regionmarket', max_size=80), st.sampled_from(["own_offers", "demand", "quotas"])
)
def test_any_text_gives_rows_or_findings_but_no_crash(text: str, table: str) -> None:
    result = parse_table(text, table, encode_gpu=NAMES.encode)
    assert result.rows_seen >= len(result.rows)
    assert result.rows or result.findings or result.rows_seen == 0


def test_ragged_row_empty_file_and_comments() -> None:
    text = "# a comment\nmodel,window_start,demand_req_per_s\n\nqwen3-32b,2026-01-01\nqwen3-32b,2026-01-01T00:00:00Z,\n"
    result = parse_table(text, "demand", label="demand.csv")
    (finding,) = result.findings
    assert (finding.row, finding.reason) == (1, "the row has 2 cells, the heading 3")
    assert result.rows[0]["demand_req_per_s"] is None
    (empty,) = parse_table("# only a comment\n", "demand").file_findings
    assert empty.reason == "the file is empty"
    assert "model,window_start,demand_req_per_s" in empty.remedy


def test_missing_and_binary_files(tmp_path) -> None:
    (finding,) = read_table(tmp_path / "none.csv", "demand").file_findings
    assert finding.reason == "the file does not exist"
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    (finding,) = read_table(tmp_path / "binary.csv", "demand").file_findings
    assert finding.reason.startswith("cannot be read as UTF-8")


def test_byte_order_mark_and_column_order_do_not_matter(tmp_path) -> None:
    path = tmp_path / "demand.csv"
    path.write_bytes(b"\xef\xbb\xbfdemand_req_per_s,model,window_start\n5,m,2026-01-01T00:00:00+02:00\n")
    (row,) = read_table(path, "demand").require_clean().rows
    assert row["demand_req_per_s"] == 5
    assert row["window_start"].isoformat() == "2025-12-31T22:00:00+00:00"


class TestGpuNames:
    @pytest.mark.parametrize("name", ["A100-80GB-SXM", "A100-SXM4-80GB", "NVIDIA A100 80GB", "a100-80gb-sxm"])
    def test_spellings_of_one_card(self, name: str) -> None:
        from catalogs.catalog import read_gpu_names

        assert read_gpu_names().encode(name) == "A100-80GB-SXM"

    @pytest.mark.parametrize("name", ["A100", "H100", "A100-80GB", "L40", "L40S-48", "V100", "4090"])
    def test_never_by_prefix(self, name: str) -> None:
        from catalogs.catalog import read_gpu_names
        from catalogs.errors import UnknownNameError

        with pytest.raises(UnknownNameError):
            read_gpu_names().encode(name)

    def test_a_feed_may_use_a_name_of_its_own(self) -> None:
        from catalogs.catalog import read_gpu_names

        assert read_gpu_names().encode("A100", scope="skypilot") == "A100-40GB-SXM"

    def test_a_name_that_is_only_a_maker(self) -> None:
        """skypilot#4669: AWS called the H200 of p5en 'NVIDIA'."""
        row = {**sound_row("own_offers"), "node_config": "NVIDIAx8", "instance_type": "p5en.48xlarge"}
        assert read("own_offers", row).rows[0]["node_config"] == "H200-SXMx8"
        (finding,) = read("own_offers", {**row, "instance_type": "x1.big"}).findings
        assert (finding.column, finding.value) == ("node_config", "NVIDIAx8")
        assert "names a maker" in finding.reason

    def test_tables_that_contradict_themselves_are_refused(self) -> None:
        with pytest.raises(ValueError, match="not a canonical id"):
            GpuNames.build(["L4"], [("any", "x", "L5", "")])
        with pytest.raises(ValueError, match="there twice"):
            GpuNames.build(["L4"], [("any", "x", "L4", ""), ("any", "X", None, "")])
        with pytest.raises(ValueError, match="itself a canonical id"):
            GpuNames.build(["L4", "T4"], [("any", "l4", "T4", "")])
