"""What a build leaves in Prefect for people to look at: a table per workload and a short summary."""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from catalogs.wording import counted
from flows.settings import BuildResult


def publish_artifacts(result: BuildResult) -> None:
    """Create the artifacts ``coral-library`` (markdown) and ``coral-library-workloads`` (table) of the current run."""
    create_table_artifact(
        key="coral-library-workloads",
        description=f"Library {result.library_id}, per workload",
        table=[
            {
                "workload": counts.alias,
                "combinations": counts.combinations,
                "templates": counts.templates,
                "frontier": counts.frontier,
                "solving s": round(counts.solve_s, 2),
                "cheapest per token": counts.best_template,
            }
            for counts in result.workloads
        ],
    )
    create_markdown_artifact(key="coral-library", description="The library just built", markdown=summary(result))


def summary(result: BuildResult) -> str:
    """The build in a few lines of markdown."""
    sample = (
        f"{counted(result.sample_n, 'placement')} solved again by the reference ILP, "
        f"largest relative difference {result.sample_max_rel_diff:.1e}"
        if result.sample_n
        else "no sample was checked"
    )
    return "\n".join(
        [
            f"# Library {result.library_id}",
            f"- {counted(result.templates, 'template')} of {counted(result.combinations, 'combination')}",
            f"- {counted(result.shards, 'shard')}, {result.shards_skipped} of them done before",
            f"- {result.solve_s:.1f} s of solving, {result.wall_s:.1f} s in all",
            f"- {sample}",
            f"- content hash {result.library_hash}, profile set {result.profile_set_id}",
        ]
    )
