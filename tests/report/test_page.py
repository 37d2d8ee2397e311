"""The page as text: escaped, closed, complete, and silent about what it may not show."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from report_runs import HOSTILE, MODELS, measure, write_run

from steppe.errors import ConfigurationError, DataError
from steppe.report import write
from steppe.report.settings import flattened

SECTIONS = ("privacy", "results", "confidence", "flatness", "gradients", "layers", "settings")


def page_of(*runs: Path, out: Path | None = None) -> str:
    return write(runs, out or runs[0].parent / "page.html").read_text()


def test_a_full_run_has_every_part_and_every_figure(tmp_path: Path) -> None:
    page = page_of(measure(write_run(tmp_path / "run")))
    assert 'class="missing"' not in page
    assert all(f'<section id="{key}"' in page for key in (*SECTIONS, "cite"))
    assert re.findall(r'<figure class="plot" id="([\w-]+)"', page) == [
        *("curve-0", "curve-1", "by-epsilon", "calibration", "widths"),
        *("rays", "landscape", "spectrum", "eigenvalues", "norms"),
    ]
    assert "ε ≤ 2.00" in page
    assert "9. verification" in page
    assert "@inproceedings{abadi2016deep" in page
    assert all(name in page for name in MODELS[1:])


@pytest.mark.parametrize("published", MODELS[:3])
def test_the_published_model_is_marked_and_heads_the_page(tmp_path: Path, published: str) -> None:
    folder = write_run(tmp_path / "run")
    before = page_of(folder)
    assert '<span class="badge">published</span>' not in before  # a run of an earlier version
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "published": published}))
    page = page_of(folder)
    name = "last iterate" if published == "last" else published
    assert page.count('<span class="badge">published</span>') == 1
    assert f'{name} <span class="badge">published</span>' in page
    assert "Which model is published was fixed before training." in page
    accuracy = next(row["accuracy"] for row in result["table"] if row["model"] == published)
    assert f"<dt>accuracy</dt><dd><strong>{100 * accuracy:.2f}" in page
    (folder / "result.json").write_text(json.dumps({**result, "published": [HOSTILE]}))
    assert page_of(folder) == before


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    policy = policy.replace("&#x27;", "'")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for element in ("style", "script"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert " style=" not in page
    assert not re.search(r"<[^>]* on\w+=", page)


def test_the_page_names_no_address(tmp_path: Path) -> None:
    page = page_of(measure(write_run(tmp_path / "run")))
    assert not re.search(r"https?:|//\w+\.\w|url\((?!#)|@import", page)
    assert set(re.findall(r'(?:src|href)="([^"#]*)', page)) == {"", "data:,"}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    models = ("last", HOSTILE)
    folder = write_run(tmp_path / "<b>run</b>", models=models)
    measure(folder, models=models)
    config = {HOSTILE: {"name": HOSTILE, "list": [{"name": HOSTILE}]}}
    (folder / "config.json").write_text(json.dumps(config))
    result = json.loads((folder / "result.json").read_text())
    result["citation"] = HOSTILE
    result["layers"] = [{"weights": [HOSTILE], "operation": HOSTILE, "why": HOSTILE}]
    (folder / "result.json").write_text(json.dumps(result))
    statement = json.loads((folder / "statement.json").read_text())
    statement["items"][HOSTILE] = HOSTILE
    statement["unit"] = HOSTILE
    (folder / "statement.json").write_text(json.dumps(statement))
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "note", "text": HOSTILE, "step": 1}) + "\n")
    other = write_run(tmp_path / "other", models=models)
    for page in (page_of(folder), page_of(folder, other)):
        assert page.count("<script") == page.count("</script") == 1
        assert "<img" not in page
        assert "<b>run" not in page
        assert "\u202e" not in page
        assert "&lt;/script&gt;&lt;script&gt;" in page


def test_folders_and_secrets_of_the_machine_are_not_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "log.jsonl").open("a") as log:
        note = "stored '/home/ann/my models/a.safetensors' and /srv/x/b.npz"
        log.write(json.dumps({"kind": "note", "text": note, "step": 1}) + "\n")
    page = page_of(folder)
    assert not re.search(r"ann/|private data/|my models|/srv|hunter2", page)
    assert all(name in page for name in ("…/arrays", "…/a.safetensors", "…/b.npz"))
    assert str(tmp_path) not in page


def test_measurements_on_private_data_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    page = page_of(measure(write_run(tmp_path / "run"), public=False))
    assert page.count("neither of public data nor part of the account") == 3
    assert 'id="norms"' not in page
    assert 'id="calibration"' not in page
    assert 'id="rays"' not in page


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"public": True}, "declared free to be shown; ε says nothing about these records"),
        ({"accounted": True}, "by a noisy count that the account includes"),
    ],
)
def test_the_histogram_says_why_it_may_be_shown(
    tmp_path: Path, flags: dict[str, bool], sentence: str
) -> None:
    folder = measure(write_run(tmp_path / "run"), public=False)
    extras = json.loads((folder / "figures.json").read_text())
    extras["gradient_norms"] |= flags
    (folder / "figures.json").write_text(json.dumps(extras))
    page = page_of(folder)
    assert sentence in page
    assert "Clipping shortens" in page


def test_what_is_missing_is_said_and_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False)
    for name in ("plan.json", "config.json"):
        (folder / name).unlink()
    (folder / "log.jsonl").write_text("")
    page = page_of(folder)
    assert "<figure" not in page
    for sentence in (
        "This run has not finished.",
        "There is no final table: the run has not finished.",
        "The log has no evaluations",
        "No measurement of flatness was added",
        "This run kept no layer table.",
        "This run kept no configuration.",
        "This run kept no citation.",
    ):
        assert sentence in page


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (None, "the run had no data for evaluation, so nothing was measured."),
        ("there is no table of scores: KeyError: 3", "scoring the models failed."),
    ],
)
def test_a_finished_run_without_scores_says_why(
    tmp_path: Path, note: str | None, sentence: str
) -> None:
    folder = write_run(tmp_path / "run", evaluations=0)
    lines = [] if note is None else [json.dumps({"kind": "note", "text": note, "step": 1})]
    (folder / "log.jsonl").write_text("\n".join(lines))
    page = page_of(folder)
    assert f"There is no final table: {sentence}" in page
    assert "has not finished" not in page


def test_a_regression_shows_its_loss(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, models=MODELS[:3]) for name in ("one", "two")]
    for name in ("log.jsonl", "result.json"):
        text = re.sub(r'"accuracy": [\d.]+', '"accuracy": null', (runs[0] / name).read_text())
        (runs[0] / name).write_text(text)
    rows = json.loads((runs[0] / "result.json").read_text())["table"]
    page = page_of(runs[0])
    assert f"<dt>loss</dt><dd><strong>{rows[0]['loss']:.4g}</strong>" in page
    lowest = min(rows[1:], key=lambda row: row["loss"])
    best = f"<strong>{lowest['loss']:.4g}</strong><span>{lowest['model']}</span>"
    assert f"<dt>best average, loss</dt><dd>{best}" in page
    both = page_of(*runs)
    assert f">loss {rows[0]['loss']:.4g}</td>" in both
    assert f">loss {lowest['loss']:.4g}</td>" in both
    assert "<td></td>" not in both


def test_the_table_shows_times_and_dashes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", models=MODELS[:2])
    result = json.loads((folder / "result.json").read_text())
    for row in result["table"]:
        row["seconds"] = 110.3987
    result["table"][1]["loss"] = None  # a vote has none
    (folder / "result.json").write_text(json.dumps(result))
    page = re.sub(r"(<t[hd]) [^>]*>", r"\1>", page_of(folder))
    assert "<th>time</th>" in page
    assert "<td>–</td><td>1 min 50 s</td>" in page


def test_a_large_delta_is_a_warning_on_every_page(tmp_path: Path) -> None:
    calm = write_run(tmp_path / "calm")
    folder = write_run(tmp_path / "run")
    statement = json.loads((folder / "statement.json").read_text())
    statement["delta"] = 1 / statement["population"]  # where item 8 says "too large" from
    (folder / "statement.json").write_text(json.dumps(statement))
    page = page_of(folder)
    assert "WARNING: δ = 1.667e-5 is not below 1 over the population." in page
    assert "<span>at δ = 1.667e-5, too large</span>" in page
    assert '<div class="void">' in page
    assert '<div class="promise">' not in page
    assert "so whole records may be published: run.</p>" in page_of(folder, calm)
    page = page_of(calm)
    assert '<div class="promise">' in page
    assert "WARNING" not in page


def test_a_void_run_shows_no_epsilon(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / name, not_private_reason=reason)
        for name, reason in (("run", "the noise was seeded"), ("other", "seeded"), ("sound", None))
    ]
    for budget, folder in zip((2.7182, 3.1415, 1.2345), folders, strict=True):
        plan = json.loads((folder / "plan.json").read_text())
        plan["asked"] = {"epsilon": budget, "epochs": 7}
        (folder / "plan.json").write_text(json.dumps(plan))
    page = page_of(folders[0])
    assert "asked.epochs" in page
    assert "asked.epsilon" not in page
    assert "2.7182" not in page
    together = page_of(*folders)
    assert "1.2345" in together
    assert "2.7182" not in together
    assert "3.1415" not in together
    assert "NOT PRIVATE: the noise was seeded" in page
    assert "ε ≤" not in page
    assert not re.search(r"step [\d,]+, ε", page)
    assert 'id="by-epsilon"' not in page
    assert "Private training run" not in page


def test_losses_that_are_not_finite_are_left_out_of_the_curves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", models=("last",))
    text = re.sub(r'"loss": [\d.]+', '"loss": NaN', (folder / "log.jsonl").read_text())
    (folder / "log.jsonl").write_text(text)
    page = page_of(folder)
    assert "Accuracy while training" in page
    assert "Loss while training" not in page
    assert "nan" not in page.lower().replace("finance", "")


def test_other_scores_have_a_curve_and_a_column(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", models=("last",))
    for name in ("log.jsonl", "result.json"):
        text = (folder / name).read_text().replace('"loss"', '"area under the curve"')
        (folder / name).write_text(text)
    page = page_of(folder)
    assert "Area under the curve while training" in page
    assert '<th scope="col">area under the curve</th>' in page


@pytest.mark.parametrize("factor", [100.0, -3.0, 1e200, 1e305, 1e-290])
def test_scores_of_any_size_are_drawn_or_left_out(tmp_path: Path, factor: float) -> None:
    folder = write_run(tmp_path / "run", evaluations=6)
    for name in ("log.jsonl", "result.json"):
        text = re.sub(
            r'"accuracy": ([\d.]+)',
            lambda found: f'"accuracy": {float(found[1]) * factor}',
            (folder / name).read_text(),
        )
        (folder / name).write_text(text)
    page = page_of(folder, write_run(tmp_path / "other"))
    assert "runs-by-epsilon" in page
    assert "nan" not in page_of(folder)


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"eps-{e}", epsilon=e, shift=e / 100) for e in (1.0, 2.0, 3.0)]
    page = page_of(*runs)
    assert re.findall(r'<figure class="plot" id="([\w-]+)"', page) == [
        "runs-by-epsilon",
        "runs-curves",
    ]
    assert "plan.noise_multiplier" in page
    assert "plan.digest" not in page
    assert page.count("The statement in nine items") == 3
    assert 'class="warning"' not in page


def test_a_comparison_shows_the_published_model(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name) for name in ("one", "two"))
    result = json.loads((one / "result.json").read_text())
    (one / "result.json").write_text(json.dumps({**result, "published": "SWA(start=200)"}))
    row = next(row for row in result["table"] if row["model"] == "SWA(start=200)")
    page = page_of(one, two)
    shown = f"{100 * row['accuracy']:.2f}"
    found = next(line for line in re.findall(r"<tr>.*?</tr>", page) if ">one<" in line)
    assert shown in found
    assert found.index(shown) < found.index("SWA(start=200)")
    assert "the published model was fixed before training" in page


def test_runs_that_cannot_be_compared_say_so(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name) for name in ("one", "two"))
    void = write_run(tmp_path / "void", not_private_reason="seeded")
    statement = json.loads((two / "statement.json").read_text())
    (two / "statement.json").write_text(json.dumps({**statement, "delta": 1e-6}))
    page = page_of(one, two, void)
    assert "The runs have different δ" in page
    assert "left out of figures by ε: void." in page


def test_several_runs_in_a_ledger_are_added_up(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["ledger"] = {"runs": 3, "epsilon": 3.71, "delta": 1e-5}
    (folder / "result.json").write_text(json.dumps(result))
    assert "The ledger had 3 runs on the same data when this run ended." in page_of(folder)
    assert "Together, what they released has ε = 3.7100 at δ = 1e-5" in page_of(folder)
    assert 'class="warning"' not in page_of(folder)


@pytest.mark.parametrize("reason", ["the noise of 2 of 3 runs is known", None])
def test_an_infinite_sum_of_a_ledger_is_a_warning(tmp_path: Path, reason: str | None) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["ledger"] = {"runs": 3, "epsilon": None, "delta": 1e-5, "not_private_reason": reason}
    (folder / "result.json").write_text(json.dumps(result))
    page = page_of(folder)
    assert '<p class="warning">WARNING: The ledger had 3 runs on the same data when this' in page
    because = reason or "the noise of one of them is known"
    assert f"has an infinite ε together, since {because}: whoever sees it faces no bound." in page


def test_a_folder_gets_a_report_in_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert write([folder], folder) == folder / "report.html"


@pytest.mark.parametrize("runs", [[], "run", Path("run")])
def test_the_runs_must_be_a_list(tmp_path: Path, runs: list[Path]) -> None:
    with pytest.raises(ConfigurationError, match="must be a list of run folders; give at least"):
        write(runs, tmp_path / "page.html")


def test_the_page_needs_a_folder_to_lie_in(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="a folder that does not exist; make the folder"):
        write([folder], tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("gradient_norms", {"counts": [1]}),
        ("gradient_norms", {"clip": "<b>"}),
        ("intervals", {"calibration": 3}),
        ("flatness", {"models": {"last": {"rays": {"distances": [1.0], "accuracies": 3}}}}),
        ("flatness", {"models": {"last": {"density": {"nodes": "x"}}}}),
    ],
)
def test_a_measurement_that_was_damaged_is_named(
    tmp_path: Path, part: str, change: dict[str, object]
) -> None:
    folder = measure(write_run(tmp_path / "run"))
    extras = json.loads((folder / "figures.json").read_text())
    extras[part] |= change
    (folder / "figures.json").write_text(json.dumps(extras))
    with pytest.raises(DataError, match=r"figures.json.*; measure again\."):
        page_of(folder)


def test_a_long_log_makes_no_endless_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", models=("last",), evaluations=585)
    page = page_of(folder)
    (figure,) = re.findall(r'<figure class="plot" id="curve-0".*?</figure>', page, re.DOTALL)
    wide, narrow = re.findall(r"<svg.*?</svg>", figure, re.DOTALL)
    assert wide.count('class="mark"') == narrow.count('class="mark"') <= 120
    assert "step 585, " in wide
    assert figure.count("<tr>") == 586


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    places = ("p/seed0", "q/seed0", "r/seed1")
    runs = [write_run(tmp_path / place, shift=i / 100) for i, place in enumerate(places)]
    page = page_of(*runs)
    for name in ("p/seed0", "q/seed0", "seed1"):
        assert f'<th scope="row">{name}</th>' in page
    with pytest.raises(ConfigurationError, match="must be different; give each once"):
        page_of(runs[0], runs[0])


def test_whole_numbers_of_any_length_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("result.json", "statement.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(re.sub(r'("(?:steps|numel)": )\d+', r"\g<1>1" + "0" * 400, text))
    assert "<html" in page_of(folder)


def test_secrets_in_lists_and_relative_folders_are_left_out(tmp_path: Path) -> None:
    values = {
        "loaders": [{"token": "hunter2"}],
        "private_key": "hunter2",
        "API-KEY": "hunter2",
        "passwd": "hunter2",
        "from": "../ann/private/x.csv",
        "share": r"\\srv\ann\x.csv",
    }
    assert not re.search("hunter2|ann|srv", str(list(flattened(values))))
