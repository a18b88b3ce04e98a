"""The page *Plan*: a version of a plan, what it costs and runs, what changed, and how it came to be over time."""

import marimo

app = marimo.App(width="full", app_title="Coral: plan")


@app.cell
def _():
    from datetime import UTC, datetime

    import marimo as mo

    from dashboards import plan_charts, plan_data, plan_view
    from dashboards.frame import bar, coral
    from dashboards.lake import LakeReader
    from dashboards.picture import gpu_colours

    lake = LakeReader()
    mo.Html(bar("plan"))
    return UTC, coral, datetime, gpu_colours, lake, mo, plan_charts, plan_data, plan_view


@app.cell
def _(lake, mo, plan_data):
    asked = mo.query_params()
    known = plan_data.scenarios(lake)
    scenario = mo.ui.dropdown(
        known, value=asked.get("scenario") if asked.get("scenario") in known else (known[0] if known else None),
        label="Scenario", allow_select_none=False,
    )  # fmt: skip
    again = mo.ui.button(label="Look again")
    return again, asked, known, scenario


@app.cell
def _(again, asked, coral, known, lake, mo, plan_data, scenario):
    again.value  # noqa: B018 - a click reads the versions anew
    mo.stop(not known, mo.Html(coral("<p>No plan is published in this lake yet: run <code>coral plan</code>.</p>")))
    listed = plan_data.versions(lake, scenario.value)
    newest = listed[0]["plan_version"]
    current = next((row["plan_version"] for row in listed if row["is_current"]), None)
    labels = {
        f"{row['plan_version']} · {row['cost_usd_per_h']:,.2f} USD/h · {row['state']} · "
        f"{row['created_at']:%Y-%m-%d %H:%M}": row["plan_version"]
        for row in listed
    }
    first = asked.get("version") or str(current)
    wanted = next((label for label, number in labels.items() if str(number) == first), next(iter(labels)))
    version = mo.ui.dropdown(labels, value=wanted, label="Version", allow_select_none=False)
    mo.hstack([scenario, version, again], justify="start", wrap=True, gap=1)
    return current, newest, version


@app.cell
def _(mo):
    minute = mo.ui.refresh(default_interval="1m")
    mo.Html(f'<div style="display:none">{minute}</div>')
    return (minute,)


@app.cell
def _(coral, lake, minute, mo, newest, plan_data, scenario):
    minute.value  # noqa: B018 - looks once a minute for a newer version
    latest = plan_data.versions(lake, scenario.value)[0]["plan_version"]
    mo.Html(
        coral(f'<p class="news" role="status">Version {latest} has been published: look again to see it.</p>')
        if latest > newest
        else ""
    )
    return


@app.cell
def _(current, lake, newest, plan_data, scenario, version):
    assert newest  # versions were read
    documents = plan_data.plan_documents(lake, scenario.value)
    plan = documents[version.value]
    before = plan_data.version_before(documents, plan, current)
    prices = plan_data.prices_by_version(lake, scenario.value)
    why = plan_data.explanation(lake, scenario.value, version.value)
    return before, documents, plan, prices, why


@app.cell
def _(coral, current, mo, plan, plan_view):
    mo.Html(coral(plan_view.headline(plan, current) + plan_view.shortfalls(plan)))
    return


@app.cell
def _(coral, documents, gpu_colours, mo, plan, plan_view):
    mo.Html(coral(plan_view.replicas(plan, gpu_colours(documents.values()))))
    return


@app.cell
def _(before, coral, mo, plan, plan_data, plan_view, prices):
    reasons = plan_data.input_changes(before, plan, prices)
    mo.Html(coral(plan_view.changes(before, plan, reasons)))
    return


@app.cell
def _(coral, mo, plan, plan_view, why):
    rent = f'<div class="pair">{plan_view.machines(plan)}{plan_view.price_per_token(plan)}</div>'
    mo.Html(coral(rent + plan_view.kv_moves(plan) + plan_view.shadow_prices(why, plan)))
    return


@app.cell
def _(UTC, coral, datetime, documents, lake, mo, plan, plan_charts, plan_data, prices, scenario):
    course = plan_data.course(
        documents,
        prices,
        plan_data.demand_seen(lake, scenario.value),
        plan_data.prices_seen(lake, scenario.value),
        datetime.now(UTC),
    )
    charts = plan_charts.course_charts(course, datetime.fromisoformat(plan["created_at"]))
    mo.vstack(
        [
            mo.Html(
                coral(
                    '<h2 style="margin-top:24px">Over time</h2><p class="quiet">Points are versions, the dashed line is the '
                    "one on this page; times are UTC.</p>"
                )
            ),
            *(chart for _, chart in charts),
        ]
    )
    return


if __name__ == "__main__":
    app.run()
