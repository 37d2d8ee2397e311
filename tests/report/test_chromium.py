"""The page in a real browser: silent console, no request, figures drawn, usable by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headless import Browser, executable
from report_runs import HOSTILE, measure, write_run

from steppe.report import write

PROGRAM = executable()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")

VISIBLE = """[...document.querySelectorAll("figure.plot")].map(figure => {
  const drawn = [...figure.querySelectorAll("svg")].filter(svg => svg.getClientRects().length);
  const marks = drawn.flatMap(svg => [...svg.querySelectorAll(".mark")]);
  const inside = marks.filter(mark => {
    const box = mark.firstElementChild.getBoundingClientRect();
    const frame = drawn[0].getBoundingClientRect();
    return box.left >= frame.left - 1 && box.right <= frame.right + 1
      && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
  });
  const paths = drawn.flatMap(svg => [...svg.querySelectorAll(".line")]);
  return [figure.id, drawn.length, marks.length, inside.length,
          paths.every(path => path.getTotalLength() > 20)];
})"""
SMALLEST_LETTERS = """Math.min(...[...document.querySelectorAll("figure svg")]
  .filter(svg => svg.getClientRects().length)
  .map(svg => 12 * svg.getScreenCTM().a))"""
LOW_CONTRAST = """(() => {
  const channel = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
    return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("p, dt, dd, th, td, li, h1, h2, h3, a, summary, svg text")]
    .filter(node => node.getClientRects().length)
    .filter(node => {
      const style = getComputedStyle(node);
      const own = light(node.closest("svg") ? style.fill : style.color);
      const [low, high] = [own, light(behind(node))].sort((a, b) => a - b);
      return (high + .05) / (low + .05) < 4.5;
    })
    .map(node => `${node.tagName} ${node.textContent.slice(0, 30)}`);
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return write([measure(write_run(folder / "run"))], folder / "page.html")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_in_silence_and_draws_every_figure(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.asked == [page.as_uri()]
    figures = browser.evaluate(VISIBLE)
    assert len(figures) == 10
    for name, drawn, marks, inside, long_enough in figures:
        assert (name, drawn) == (name, 1)
        assert marks == inside > 0, name
        assert long_enough, name
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(SMALLEST_LETTERS) >= 9.5
    assert browser.evaluate(LOW_CONTRAST) == []
    browser.evaluate("document.querySelector('h1').style.color = 'var(--paper)'")
    assert [found[:2] for found in browser.evaluate(LOW_CONTRAST)] == ["H1"]


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    models = ("last", HOSTILE)
    run = measure(write_run(tmp_path / "run", models=models), models=models)
    browser.open(write([run], tmp_path / "page.html"))
    assert browser.complaints == []
    assert browser.evaluate("document.title").startswith("run")
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.querySelectorAll('img').length") == 0


def test_the_policy_stops_what_might_slip_through(browser: Browser, page: Path) -> None:
    """The test can fail: a script put into the page by hand is refused, and is complained of."""
    broken = page.with_name("broken.html")
    text = page.read_text().replace("</main>", "<script>document.title='taken'</script></main>")
    broken.write_text(text)
    browser.open(broken)
    assert browser.evaluate("document.title") != "taken"
    assert "Content Security Policy" in " ".join(browser.complaints)


def test_the_pointer_shows_the_values_of_a_step(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("document.getElementById('curve-0').scrollIntoView({behavior: 'instant'})")
    left, top, width, height = browser.evaluate(
        "(() => { const box = document.querySelector('#curve-0 svg.wide').getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height]; })()"
    )
    assert browser.evaluate("document.getElementById('tip').hidden")
    browser.move_to(left + 0.7 * width, top + 0.5 * height)
    tip = browser.evaluate("document.getElementById('tip').innerText")
    assert tip.startswith("step ")
    assert "last iterate" in tip
    assert "EMA(decay=0.99)" in tip
    assert tip.count("%") == 5
    browser.move_to(5, 5)
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_everything_can_be_reached_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the report"
    browser.evaluate("document.querySelector('#curve-0 .wide .mark[tabindex=\"0\"]').focus()")
    label = "document.activeElement.getAttribute('aria-label')"
    first = browser.evaluate(label)
    browser.press("ArrowRight")
    second = browser.evaluate(label)
    browser.press("ArrowDown")
    third = browser.evaluate(label)
    assert first.startswith("last iterate, step ")
    assert second.startswith("last iterate, step ")
    assert first != second
    assert third.startswith("SWA(start=200), step ")
    assert not browser.evaluate("document.getElementById('tip').hidden")
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('tip').hidden")
    reachable = "document.querySelectorAll('#curve-0 .wide .mark[tabindex=\"0\"]').length"
    assert browser.evaluate(reachable) == 1


def test_the_button_turns_light_to_dark_and_print_is_light(browser: Browser, page: Path) -> None:
    browser.open(page)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(paper)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(paper) != light
    browser.screen(1280, 800, media="print")
    assert browser.evaluate(paper) == light
    assert browser.evaluate("document.querySelector('nav').getClientRects().length") == 0
