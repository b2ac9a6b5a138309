"""A diagnosis in words, as a table for a terminal, and as a page."""

from __future__ import annotations

from typing import Any

from normstorm._shared import files
from normstorm.report import html

from .diagnosis import GAIN, MEMORIES, NOT, PAYS, RATIO, Diagnosis

ANSWERS = {
    PAYS: "The two-point term can pay here",
    NOT: "The two-point term does not pay here",
}
FAR = "While there is still a way to go, steps count more than accuracy: ask again when the loss falls more slowly."
ROUGH = 0.3  # a difference with more rounding than this deserves another way to compute it


def explain(found: Diagnosis) -> str:
    """The answer, why, what it would take and cost, and what to mind; one paragraph each."""
    where = f"lr = {found.lr:g}, geometry {found.geometry}, batches of {found.batch}"
    return "\n\n".join([f"{ANSWERS[found.verdict]} ({where}). {_why(found)}", _how(found), *_notes(found)])


def _why(found: Diagnosis) -> str:
    best = found.forecast
    errors = (
        f"At equal cost the predicted error of the estimate is {best.error:.3g} with two points and "
        f"{best.momentum_error:.3g} with momentum, a ratio of {found.ratio:.2f}"
    )
    spread = f" ({found.ratio_low:.2f} to {found.ratio_high:.2f} when the measurements are drawn again)"
    if found.reason == "bounce":
        return (
            f"The iterates bounce: successive changes of the gradient point against each other (cosine "
            f"{found.bounce:.2f}). Momentum's lag damps the bounce and an accurate gradient follows it, so the better "
            "estimate makes the worse step, whatever its error. A smaller step may end that; so may momentum alone."
        )
    if found.reason == "noise":
        return (
            f"{errors}{spread}. The samples disagree about the difference (curvature noise "
            f"{found.curvature_noise:.3g}) too much for what the drift costs momentum ({found.drift:.3g} a step)."
        )
    raced = (
        f"In a race over the same gradients from the same start momentum ({found.momentum_way}, beta = "
        f"{found.momentum_beta:g}) ended at {found.race_loss:.4g}, two points (beta = {found.two_point_beta:g}) "
        f"{abs(found.lead):.2g} {'lower' if found.lead > 0 else 'higher'} (standard error {found.lead_error:.1g})"
    )
    if found.reason == "race":
        return f"{raced}. {errors}{spread}. {'' if found.lead > 0 else FAR}".strip()
    if found.reason == "signal":
        return (
            f"{raced}: no difference that counts. {errors}, but the gradient is long ({found.gradient:.3g}) against "
            f"both: the better estimate makes only {found.gain:.2f} times the progress of a step; {GAIN:g} is asked."
        )
    if found.reason == "close":
        return f"{raced}: no difference that counts. {errors}{spread}; at most {RATIO:g} is asked."
    if found.reason == "horizon":
        return (
            f"{raced}: no difference that counts. {errors}{spread}, but that takes beta = {found.forecast.beta:g}, and "
            f"{found.horizon:,} steps are fewer than {MEMORIES} of its memories: ask again with a longer horizon."
        )
    return (
        f"{errors}{spread}; the iterates do not bounce (cosine {found.bounce:.2f}), and noise, not the length of the "
        f"step, limits momentum. {raced}, which does not speak against it."
    )


def _how(found: Diagnosis) -> str:
    best, K = found.forecast, found.batch
    more = (K + best.k) / K
    return (
        f"It would take beta = {best.beta:g} and k = {best.k} of the {K} samples at both points, and cost {more:.3g} "
        f"times the gradients of a step ({K + best.k} for {K}; about {found.seconds * (more - 1):.2g} seconds more a "
        f"step here), and no memory beside momentum's (one copy of {found.parameters:,} numbers). Momentum at that "
        f"cost, with {K + best.k} samples, would take beta = {best.momentum_beta:g}."
    )


def _notes(found: Diagnosis) -> list[str]:
    notes = []
    if found.rounding is None:
        notes.append(
            "Rounding could not be measured: the loss has no counterpart in double precision, or the weights, in "
            "theirs, did not move."
        )
    elif found.rounding > ROUGH:
        notes.append(
            f"{found.rounding:.0%} of the difference is rounding error in this precision. Evaluate both points in "
            'float32 without autocast or TF32, or take difference="hvp", which does not cancel.'
        )
    notes.append(
        f"This is about the next {found.horizon:,} steps from this point, seen along {found.steps} with "
        f"{found.measurements} measurements; it is a forecast, not a guarantee."
    )
    return notes


def rows(found: Diagnosis) -> list[tuple[str, str, str]]:
    """What was measured: name, value, meaning."""
    lost = "not measurable" if found.rounding is None else f"{found.rounding:.2g}"
    spread = f"{found.ratio:.3g} [{found.ratio_low:.3g}, {found.ratio_high:.3g}]"
    return [
        ("loss", f"{found.loss:.4g}", "mean along the probe"),
        ("gradient", f"{found.gradient:.3g}", "length of the full gradient"),
        ("noise", f"{found.noise:.3g}", "of the gradient of one batch"),
        ("drift", f"{found.drift:.3g}", "of the full gradient in one step"),
        ("window drift", f"{found.window_drift:.3g}", f"of the full gradient in {found.window} steps"),
        ("exponent", f"{found.exponent:.2f}", "how drift adds up: 1 steadily, 0 not at all"),
        ("curvature noise", f"{found.curvature_noise:.3g}", "of the difference at two points on one batch"),
        ("bounce", f"{found.bounce:.2f}", "cosine of successive drifts; negative is to and fro"),
        ("change", f"{found.change:.3g}", "difference at two points over gradient, on one batch"),
        ("rounding", lost, "relative error of that difference"),
        ("error ratio", spread, "two points over momentum at equal cost"),
        ("lead", f"{found.lead:.2g} ± {found.lead_error:.1g}", "of two points at the horizon, over the same gradients"),
        ("gain", f"{found.gain:.3g}", "progress of a step, two points over momentum"),
    ]


def show(found: Diagnosis) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Measured", title_justify="left", title_style="bold", box=box.SIMPLE, show_edge=False)
    for name in ("", "value", "meaning"):
        table.add_column(name, justify="right" if name == "value" else "left")
    for row in rows(found):
        table.add_row(*row)
    console.print(explain(found), markup=False, highlight=False)
    console.print(table)


def save(found: Diagnosis, path: Any) -> None:
    """Write the page; the file is whole or not there."""
    target = files.checked("diagnosis", path, [".html"])
    files.writable("diagnosis", target)
    files.write_atomically(target, page(found))


def page(found: Diagnosis) -> str:
    best = found.forecast
    tiles = [
        ("verdict", found.verdict),
        ("error, two points over momentum", f"{found.ratio:.2f}"),
        ("bounce", f"{found.bounce:.2f}"),
        ("beta, k it would take", f"{best.beta:g}, {best.k}"),
    ]
    asked = [
        ("step size", f"{found.lr:g}"),
        ("beta", f"{found.beta:g}"),
        ("geometry", found.geometry),
        ("samples in a batch", f"{found.batch:,}"),
        ("parameters", f"{found.parameters:,}"),
        ("horizon, steps, measurements", f"{found.horizon:,}, {found.steps:,}, {found.measurements:,}"),
    ]
    return html.render(
        "diagnosis.html",
        "normstorm diagnosis",
        "Diagnosis",
        f"{found.verdict}, lr {found.lr:g}",
        {},
        tiles=tiles,
        paragraphs=explain(found).split("\n\n"),
        measured=rows(found),
        asked=asked,
    )
