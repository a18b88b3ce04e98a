"""The page *Library*: templates as tokens per USD against rate, with filters, and a cell for SQL."""

import marimo

app = marimo.App(width="full", app_title="Coral: library")


@app.cell
def _():
    import marimo as mo

    from dashboards import library_data, library_view
    from dashboards.frame import bar, coral
    from dashboards.lake import LakeReader, StatementError
    from dashboards.page import escape
    from warehouse.recipes import RECIPES, about

    lake = LakeReader()
    mo.Html(bar("library"))
    return RECIPES, StatementError, about, coral, escape, lake, library_data, library_view, mo


@app.cell
def _(coral, lake, library_data, mo):
    known = library_data.libraries(lake)
    mo.stop(not known, mo.Html(coral("<p>No library is built in this lake yet: run <code>coral build</code>.</p>")))
    keys = [row["scenario_id"] for row in known]
    asked = mo.query_params().get("scenario")
    scenario = mo.ui.dropdown(
        keys, value=asked if asked in keys else keys[0], label="Scenario", allow_select_none=False
    )
    return known, scenario


@app.cell
def _(coral, escape, known, lake, library_data, mo, scenario):
    library = next(row for row in known if row["scenario_id"] == scenario.value)
    listed = {f"{row['alias']} ({row['slo_ms']:g} ms)": row for row in library_data.workloads(lake, scenario.value)}
    mo.stop(not listed, mo.Html(coral("<p>This library has no template.</p>")))
    workload = mo.ui.dropdown(list(listed), value=next(iter(listed)), label="Workload", allow_select_none=False)
    places = {"cheapest region": "", **{name: name for name in library_data.regions(lake, scenario.value)}}
    region = mo.ui.dropdown(places, value="cheapest region", label="Region", allow_select_none=False)
    gpus = mo.ui.multiselect(library_data.gpus(lake, scenario.value), label="GPUs, these alone")
    mixed = mo.ui.dropdown(
        {"all": "all", "one kind of node": "one kind", "mixed": "mixed"}, value="all", label="Nodes", allow_select_none=False
    )  # fmt: skip
    which = mo.ui.dropdown(
        {"all that were solved": False, "those no mix of smaller ones replaces": True}, value="all that were solved",
        label="Templates", allow_select_none=False,
    )  # fmt: skip
    classes = mo.ui.multiselect({text: name for name, text in library_data.CLASSES.items()}, label="Launch class")
    mo.vstack(
        [
            mo.Html(
                coral(
                    f'<h1>{escape(scenario.value)} <span class="quiet">library of templates</span></h1><p class="quiet">Up to '
                    f"{library['n_max']} nodes and {library['rho']:g} times the model's memory per replica; built "
                    f"{library['built_at']:%Y-%m-%d %H:%M} UTC.</p>"
                )
            ),
            mo.hstack([scenario, workload, region, mixed, which, gpus, classes], justify="start", wrap=True, gap=1),
        ]
    )
    return classes, gpus, listed, mixed, region, which, workload


@app.cell
def _(classes, gpus, lake, library_data, listed, mixed, region, scenario, which, workload):
    chosen = library_data.Filter(
        scenario.value, listed[workload.value]["workload_id"], region.value, tuple(gpus.value), mixed.value,
        tuple(classes.value), which.value,
    )  # fmt: skip
    statement = library_data.templates_sql(chosen)
    rows = lake.rows(statement)
    return rows, statement


@app.cell
def _(coral, library_view, mo, rows):
    mo.Html(coral(f'<div data-rows="{len(rows)}" class="count">{library_view.counts(rows)}</div>'))
    return


@app.cell
def _(library_view, mo, rows):
    library_view.scatter(rows) if rows else mo.Html("")
    return


@app.cell
def _(coral, library_view, mo, rows):
    mo.Html(coral(library_view.best(rows)) if rows else "")
    return


@app.cell
def _(RECIPES, about, mo, scenario, statement):
    questions = {recipe.title: about(recipe, scenario.value) for recipe in RECIPES}
    questions["The templates above"] = statement
    question = mo.ui.dropdown(questions, value=RECIPES[0].title, label="Question", allow_select_none=False)
    return (question,)


@app.cell
def _(coral, mo, question):
    text = mo.ui.code_editor(question.value, language="sql", min_height=120)
    run = mo.ui.run_button(label="Run")
    mo.vstack(
        [
            mo.Html(
                coral(
                    '<h2 style="margin-top:24px">Ask the lake</h2><p class="quiet">One SELECT, read only, as <code>coral sql'
                    "</code> takes it. Choose a question, change it, run it.</p>"
                )
            ),
            question,
            text,
            run,
        ]
    )
    return run, text


@app.cell
def _(StatementError, coral, escape, lake, library_view, mo, run, text):
    mo.stop(not run.value, mo.Html(""))
    try:
        said = library_view.answer(*lake.answer(text.value))
    except StatementError as error:
        said = f'<p class="card missed" role="alert">{escape(error)}</p>'
    mo.Html(coral(f'<div class="answer">{said}</div>'))
    return


if __name__ == "__main__":
    app.run()
