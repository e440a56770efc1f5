"""Reports formatted as plain text, and progress on the standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from muonlab._columns import aligned


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table: text aligned to the left, numbers to the right.

    Example:
        >>> print(table(["name", "n"], [["a", 1], ["bc", 20]]))
        name   n
        ----  --
        a      1
        bc    20
    """
    cells = [[*map(_cell, row)] for row in rows]
    rules = ["-" * max(len(header[j]), *(len(row[j]) for row in cells)) for j in range(len(header))]
    numeric = [j for j in range(len(header)) if all(isinstance(row[j], (int, float, type(None))) for row in rows)]
    return "\n".join(aligned([header, rules, *cells], right=numeric))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_line(text: str) -> None:
    """Print a line of progress to the standard error."""
    print(text, file=sys.stderr, flush=True)


def show_note(text: str) -> None:
    """Print a line to the standard error if it is a terminal."""
    if sys.stderr.isatty():
        show_line(text)


def show_matrices(done: int, total: int) -> None:
    """Show the progress of certificates on a terminal; ``done`` counts from 0."""
    _show_count(done + 1, total, f"{done + 1} of {total} matrices")


def show_reading(done: int, total: int, what: str) -> None:
    """Show the progress of reading data on a terminal."""
    _show_count(done, total, f"{what}: {done:,} of {total:,}")


def _show_count(done: int, total: int, text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="\r" if done < total else "\r\x1b[K", file=sys.stderr, flush=True)


def parse_shape(text: str) -> tuple[int, int]:
    """Return rows and columns of a text such as ``768x3072``.

    Example:
        >>> parse_shape("768x3072")
        (768, 3072)
    """
    rows, times, columns = text.lower().replace("×", "x").partition("x")
    if not (times and rows.strip().isdecimal() and columns.strip().isdecimal()):
        raise ValueError(f"a shape must be rows x columns in digits, got {text!r}: for example 768x3072")
    return int(rows), int(columns)


def rates(report: dict[str, Any]) -> str:
    """Format the bounds of the methods."""
    problem = ", ".join(f"{k} = {v:g}" for k, v in report["problem"].items())
    counted = report["target"] is not None
    rows = [
        [m["method"], m["bound"], m["dominant"]]
        + ([m["eta"], m["one_minus_beta"]] if m["bound"] is not None else [None, None])
        + ([m["iterations"]] if counted else [])
        + [m["basis"]]
        for m in report["methods"]
    ]
    header = ["method", "bound", "largest term", "eta", "1 - beta", *(["steps to target"] if counted else []), "basis"]
    reasons = [f"{m['method']}: no bound. {m['reason']}." for m in report["methods"] if m["bound"] is None]
    title = f"Average nuclear norm of the gradient after T steps, at most ({report['constants']} constants)"
    notes = [f"Steps to target {report['target']:g}: smallest T at the best eta and beta."] if counted else []
    if report["lr_schedule"]:
        ahead = ", with Nesterov's look-ahead" if report["nesterov"] else ""
        rate = "constant rate" if report["lr_schedule"] == "constant" else f"{report['lr_schedule']} schedule"
        notes.append(f"Muon: Corollary A1, {rate}{ahead}; the average is weighted by the rates, and eta is the peak.")
    return "\n".join([title, problem, "", table(header, rows), *([""] if reasons or notes else []), *reasons, *notes])


def polynomials(report: dict[str, Any]) -> str:
    """Format the registered polynomials."""
    entries = report["polynomials"]
    ranks = list(entries[0]["alignment_floor"])
    rows = [
        [*(e[k] for k in ("name", "kappa", "slope", "s_max")), *e["alignment_floor"].values(), e["covered_by_paper"]]
        for e in entries
    ]
    header = ["name", "kappa", "slope at 0", "max F", *(f"floor r={r}" for r in ranks), "paper covers it"]
    sources = [f"{e['name']}: {e['source']}" for e in entries]
    note = (
        f"After {entries[0]['steps']} steps, raw (no safety factor). floor: alignment of every matrix of rank <= r. "
        f"{report['any_degree']}."
    )
    return "\n".join([table(header, rows), "", note, "", *sources])


def optimizers(report: dict[str, Any]) -> str:
    """Format the registered optimizers with their defaults."""
    columns = ("lr", "momentum", "momentum_form", "nesterov", "weight_decay", "scale", "renormalize", "orthogonalizer")
    entries = report["optimizers"]
    header = ["name", *(column.replace("_", " ") for column in columns)]
    rows = [[e["name"], *(e[column] for column in columns)] for e in entries]
    return "\n".join([table(header, rows), "", *(f"{e['name']}: {e['source']}" for e in entries)])


def studies(report: dict[str, Any]) -> str:
    """Format the studies with their claims."""
    profiles = list(dict.fromkeys(profile for s in report["studies"] for profile in s["cells"]))
    ours = not any(s["file"] for s in report["studies"])
    rows = [
        [*([s["number"]] * ours), s["name"], s["title"], *([", ".join(s["items"])] * ours)]
        + [s["cells"].get(name, "-") for name in profiles]
        for s in report["studies"]
    ]
    counts = [f"cells, {profile}" for profile in profiles] if len(profiles) > 1 else ["cells"]
    header = [*(["no."] * ours), "name", "title", *(["of the paper"] * ours), *counts]
    claims = [f"{s['name']}: {' '.join(s['claims'])}" for s in report["studies"] if s["claims"]]
    files = [f"Run it: muonlab run {s['file']}" for s in report["studies"] if s["file"]]
    ends = files or ["Run one: muonlab run NAME --profile smoke"]
    return "\n".join([table(header, rows), "", *claims, *([""] if claims else []), *ends])


def models(report: dict[str, Any]) -> str:
    """Format the models with their sizes."""
    rows = [
        [m["name"], f"{m['parameters']:,}", "x".join(map(str, m["shape"])), m["classes"], m["source"]]
        for m in report["models"]
    ]
    return table(["name", "parameters", "input", "classes", "source"], rows)


def datasets(report: dict[str, Any]) -> str:
    """Format the datasets and their sources."""
    rows = [
        [d["name"], d["title"], d["hub"] or "embedded", "x".join(map(str, d["shape"])), d["classes"]]
        + [d[part] for part in ("train", "test")]
        for d in report["datasets"]
    ]
    return table(["name", "title", "hub", "shape", "classes", "train", "test"], rows)


def data(report: dict[str, Any]) -> str:
    """Format which datasets are available."""
    columns = ("name", "source", "where", "label", "train", "test", "cached")
    rows = [[d[column] for column in columns] for d in report["datasets"]]
    problems = [f"{d['name']}: {d['problem']}" for d in report["datasets"] if d["problem"]]
    return "\n".join([table(columns, rows), *([""] if problems else []), *problems])


def run(report: dict[str, Any]) -> str:
    """Format the results of a study: mean and standard deviation over the seeds for each label."""
    places = report["places"]
    names = list(dict.fromkeys(name for p in places for name in p if name not in ("label", "runs", "done")))
    rows = [
        [p["label"], f"{p['done']} of {p['runs']}", *(_with_deviation(p.get(name)) for name in names)] for p in places
    ]
    smaller = report["smaller_than_the_paper"]
    notes = [
        *([f"Profile {report['profile']}, not the paper's setting: {smaller}"] if smaller else []),
        *([f"Changed by options: {', '.join(report['changed'])}"] if report["changed"] else []),
        *(f"Data: {d['words']}" for d in report["data"].values()),
        *([report["earlier"]] if report["earlier"] else []),
        *([] if report["clock"] == "wall" else [report["timing"]]),
        *(f"Failed: {f['cell']}: {f['error']}" for f in report["failures"]),
    ]
    if report["cells_to_run"] == 0:
        done, cells = (sum(p[name] for p in places) for name in ("done", "runs"))
        notes.append(f"{done} of {cells} cells were done already; nothing was run.")
    ends = {
        "done": f"Done: {report['folder']}",
        "failed": f"Some cells failed; --retry runs them again. The results are in {report['folder']}",
        "open": f"Stopped, and saved in {report['folder']}: rerun the same command to resume.",
    }
    header = ["", "runs", *(name.replace("_", " ") for name in names)]
    analysis = report["analysis"]
    columns = [name.replace("_", " ") for name in analysis[0]] if analysis else []
    tables = [table(columns, [[*row.values()] for row in analysis]), ""] if analysis else []
    page = f"Page: {report['page']}" if report["page"] else f"The page could not be written: {report['page_problem']}"
    return "\n".join([table(header, rows), "", *tables, *notes, ends[report["status"]], page])


def new(report: dict[str, Any]) -> str:
    """Format the name of a new study file, and how it is run."""
    return f"Written: {report['file']}\nRun it: muonlab run {report['file']}"


def queue(report: dict[str, Any]) -> str:
    """Format the progress of each entry of a queue, and the time that the rest will take."""
    from muonlab.lab.runner.queue import duration

    rows = [
        [*(e["entry"][k] for k in ("name", "seeds")), f"{e['done']} of {e['cells']}", e["failed"] or "-", left]
        for e in report["entries"]
        for left in [duration(e["minutes"]) if e["open"] else "-"]
    ]
    done, cells, minutes = (sum(e[name] for e in report["entries"]) for name in ("done", "cells", "minutes"))
    left = f"about {duration(minutes / report['jobs'])} with {report['jobs']} at a time"
    total = f"{done} of {cells} cells are done; the rest will take {left}." if done < cells else "All cells are done."
    return "\n".join([table(["run directory", "seeds", "cells done", "failed", "CPU time left"], rows), "", total])


def report(answer: dict[str, Any]) -> str:
    """Format the path of a page, the verdicts on its claims, and what could not be used."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in answer["claims"].items())
    problems = [f"  {problem['where']}: {problem['what']}" for problem in answer["problems"]]
    listed = [f"Could not be used ({len(problems)}):", *problems[:20]] if problems else []
    more = [f"  and {len(problems) - 20} more, on the page"] if len(problems) > 20 else []
    return "\n".join([*listed, *more, f"Claims: {counts}", f"Page: {answer['page']}"])


def explore(answer: dict[str, Any]) -> str:
    """Format the path of the explorer."""
    return f"Page: {answer['page']}"


def _with_deviation(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value['mean']:.4g}" + (f" ± {value['std']:.2g}" if value["std"] else "")


def bench(report: dict[str, Any]) -> str:
    """Format the checks and times of a device."""
    about = ", ".join(f"{k} {v}" for k, v in report["hardware"].items())
    checks = table(
        ["checked", "dtype", "largest error", "allowed", "ok"],
        [[row["what"], row["dtype"], row["error"], row["allowed"], row["ok"]] for row in report["correct"]],
    )
    parts = [about, "", checks]
    if report["status"] == "failed":
        parts += ["", "A result is wrong, so nothing was timed. Please report the file below."]
    for part in report["times"]:
        rows = [
            [name, part["median_ms"][name], part["speedup_of_muonlab"][name] if name != "muonlab" else None]
            for name in part["median_ms"]
        ]
        parts += ["", table([part["title"], "ms, median", "over muonlab"], rows)]
    parts += ["", *(f"Left out: {name}: {reason}" for name, reason in report["left_out"].items())]
    return "\n".join([*parts, f"Written to {report['file']}"])


def doctor(report: dict[str, Any]) -> str:
    """Format the description of the machine."""
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    cpu = ", ".join(f"{k} {v}" for k, v in report["cpu"].items())
    dtypes = table(
        ["device", *next(iter(report["hardware_products"].values()))],
        [[device, *row.values()] for device, row in report["hardware_products"].items()],
    )
    measured = table(
        ["measured", "shape", "dtype", "ms", "GFLOP/s"],
        [
            [t["what"], "x".join(map(str, t["shape"])), t["dtype"], t["seconds"] * 1e3, t["flops_per_second"] / 1e9]
            for t in report["throughput"]
        ],
    )
    ratio = f"Products run {report['gemm_over_svd']:.3g} times faster than SVDs per operation (Lemma 11)."
    return "\n".join([versions, cpu, "", "Products in hardware:", dtypes, "", measured, "", ratio])
