"""The command `fspo audit`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from fspo.cli import JsonOut

Column = Annotated[str | None, typer.Option(metavar="COLUMN", rich_help_panel="Columns, found by name if not given")]


def audit(
    files: Annotated[
        list[str],
        typer.Argument(help="tables (Parquet, JSONL, JSON, CSV, TSV; .gz, .zst), patterns, or folders of runs"),
    ],
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="fairness over this column, not length")] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="the run's rule, name:parameter=value,..., if no column says what was accepted; the name may be "
            "module:Class"
        ),
    ] = None,
    clip_rate: Annotated[
        float | None,
        typer.Option(help="rate for which the band is chosen; default: the run's"),
    ] = None,
    mismatch: Annotated[
        bool, typer.Option("--mismatch", help="the log-probs are of sampler and trainer: audit mismatch rules")
    ] = False,
    bins: Annotated[int, typer.Option(help="quantile bins")] = 8,
    json_out: JsonOut = None,
    html: Annotated[Path | None, typer.Option(metavar="PATH", help="write one page that opens offline")] = None,
    length: Column = None,
    log_ratio: Column = None,
    logprobs: Column = None,
    old_logprobs: Column = None,
    sampler_logprobs: Column = None,
    mask: Column = None,
    accepted: Column = None,
    clipped: Column = None,
    advantage: Column = None,
    reward: Column = None,
    truncated: Column = None,
) -> None:
    """How unfair is a run's clipping, over length or over any column?

    Clip rate by bin with intervals under the run's own rule, a recommended band and a fixed range, the LRE, mu, sigma
    and H, truncation and reward by length.

    [dim]fspo audit runs/mine[/]
    [dim]fspo audit 'dumps/*.parquet' --html audit.html --json audit.json[/]
    [dim]fspo audit rows.csv --length n_tokens --log-ratio s --rule gspo:clip_low=3e-4,clip_high=4e-4[/]
    [dim]fspo audit tokens.parquet --logprobs new --old-logprobs old --by task[/]
    [dim]fspo audit runs/mine --clip-rate 0.05[/]   the band for a clip rate of 5 %
    """
    from fspo.audits import audit as run

    given = {
        "length": length, "log_ratio": log_ratio, "logprobs": logprobs, "old_logprobs": old_logprobs,
        "sampler_logprobs": sampler_logprobs, "mask": mask, "accepted": accepted, "clipped": clipped,
        "advantage": advantage, "reward": reward, "truncated": truncated,
    }  # fmt: skip
    result = run(
        files, columns={role: name for role, name in given.items() if name is not None}, by=by, rule=rule,
        clip_rate=clip_rate, mismatch=mismatch, bins=bins,
    )  # fmt: skip
    # Files first: a pipe that is closed while the text is printed must not lose them.
    if json_out is not None and json_out != "-":
        result.write_json(json_out)
    if html is not None:
        result.write_html(html)
    print(result.to_json() if json_out == "-" else result.text(shutil.get_terminal_size((100, 24)).columns))
