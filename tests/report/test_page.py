"""The page in a real browser: silent, without a request, and answering to mouse, keyboard and small screens."""

import dataclasses

import pytest
from playwright import sync_api

from noisescope.report.chromium import find_chromium
from noisescope.report.html import to_html
from noisescope.report.view import Statement
from report import example, hostile

pytestmark = pytest.mark.browser

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEW = example.view()
BESIDES = tuple(
    Statement(name, VIEW.severity, "Said at length, and below what is to be done. " * 4)
    for name in ("Localisation", "Comparison", "Robustness", "Precision map", "Plan")
)
JOINED = dataclasses.replace(VIEW, besides=BESIDES)
PHONE, DESK = (360, 740), (1200, 800)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    for name, view in (
        ("example", VIEW),
        ("hostile", hostile.poisoned(VIEW)),
        ("odd", hostile.odd(VIEW)),
        ("joined", JOINED),
    ):
        place.joinpath(f"{name}.html").write_text(to_html(view), "utf-8")
    return place


@pytest.fixture
def opened(browser, folder):
    """Opens a page; whatever it says or asks for beyond its own file ends the test."""
    contexts, heard = [], []

    def open_page(name="example", size=DESK, **settings):
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
        url = folder.joinpath(f"{name}.html").as_uri()
        page.on("request", lambda asked: heard.append(asked.url) if asked.url != url else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not heard


def column(page, table, index):
    return page.locator(f"{table} tbody tr").evaluate_all(
        f"rows => rows.filter(r => getComputedStyle(r).display !== 'none').map(r => r.cells[{index}].innerText.trim())"
    )


@pytest.mark.parametrize("size", [PHONE, DESK, (720, 900)], ids=["phone", "desk", "between"])
@pytest.mark.parametrize("name", ["example", "hostile", "odd", "joined"])
def test_the_page_never_scrolls_sideways(opened, name, size):
    page = opened(name, size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]


@pytest.mark.parametrize("name", ["example", "joined"])
def test_the_first_screen_holds_verdict_risk_and_three_things(opened, name):
    page = opened(name, size=(1200, 760))
    for text in (VIEW.verdict, "score 136.5", *(action.action for action in VIEW.actions[:3])):
        box = page.get_by_text(text, exact=True).first.bounding_box()
        assert box["y"] + box["height"] < 760, text


def test_other_verdicts_are_named_at_once_and_told_below(opened):
    page = opened("joined")
    assert page.locator(".verdict .chips li").all_inner_texts() == [
        f"{one.name}\n{one.severity.word}" for one in BESIDES
    ]
    page.get_by_role("link", name="Plan").click()
    assert page.locator(".besides li").count() == 5
    assert page.locator("#besides").bounding_box()["y"] < 800


def test_a_click_sorts_and_another_sorts_the_other_way(opened):
    page = opened()
    table = "#operators-1-table"
    head = page.locator(f"{table} th", has_text="degradation")
    assert column(page, table, 0)[0] == "linear"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, table, 0) == ["softmax", "matmul", "silu", "rms_norm", "linear", "gelu"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    # What has no figure stays last.
    assert column(page, table, 0) == ["linear", "rms_norm", "silu", "matmul", "softmax", "gelu"]


def test_severities_sort_by_their_weight_and_by_key(opened):
    page = opened()
    table = "#operators-1-table"
    head = page.locator(f"{table} th", has_text="verdict")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert column(page, table, 3)[:3] == ["CRITICAL", "MODERATE", "ROBUST"]
    assert page.locator(f"{table} [aria-sort=descending]").count() == 1


def test_windows_sort_by_their_place_and_not_by_their_spelling(opened):
    page = opened()
    page.locator("#windows summary").first.click()
    head = page.locator("#windows-1-table th", has_text="window").get_by_role("button")
    head.click()
    assert column(page, "#windows-1-table", 0)[:3] == ["0-2", "1-3", "2-4"]


def test_one_filter_works_on_the_whole_page(opened):
    page = opened()
    assert page.locator("#filter").is_visible()
    page.locator("#by-layer").select_option("12")
    page.locator("#windows summary").first.click()
    assert column(page, "#windows-1-table", 0) == ["10-12", "11-13", "12-14"]
    lit = page.locator("#windows svg.wide .mark:not(.off)")
    assert lit.count() == 3
    assert "of" in page.locator("#shown").inner_text()
    page.locator("#by-operator").select_option("softmax")
    assert column(page, "#operators-1-table", 0) == ["softmax"]
    assert page.locator("#map svg.wide .mark:not(.off)").count() == 1
    page.get_by_role("button", name="Show all").click()
    sync_api.expect(page.locator(".off")).to_have_count(0)
    assert page.locator("#shown").inner_text() == ""


def test_a_mark_says_its_figure_on_hover(opened):
    page = opened()
    mark = page.locator("#windows svg.wide .mark").nth(11)
    mark.scroll_into_view_if_needed()
    page.wait_for_timeout(50)
    mark.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert tip.inner_text().startswith("window 11-13: 24.") and "avalanche point" in tip.inner_text()
    page.mouse.move(5, 5)
    assert tip.is_hidden()


def test_a_mark_says_its_figure_on_focus_and_arrows_walk(opened):
    page = opened(reduced_motion="reduce")
    first = page.locator("#map svg.wide .mark[tabindex='0']")
    assert first.count() == 1
    first.focus()
    said = page.locator("#tip")
    said.wait_for(state="visible")
    assert said.inner_text().startswith("linear, layer 0:")
    page.keyboard.press("ArrowRight")
    assert said.inner_text().startswith("linear, layer 1:")
    page.keyboard.press("ArrowDown")
    assert said.inner_text().startswith("matmul, layer 1:")
    page.keyboard.press("End")
    assert said.inner_text().startswith("rms_norm, outside the layers:")
    page.keyboard.press("Escape")
    assert said.is_hidden()
    box = page.locator("#map svg.wide").bounding_box()
    assert 0 <= box["y"] < 800, "what has the focus is in sight"


def test_figures_are_one_stop_each_for_the_keyboard(opened):
    page = opened()
    stops = page.locator("svg.wide .mark[tabindex='0']").count()
    assert stops == 5
    assert page.locator(".mark title").count() == 0, "the browser's own hint would cover ours"


def test_a_phone_gets_the_narrow_drawing(opened):
    page = opened(size=PHONE)
    assert page.locator("#map svg.narrow").is_visible() and page.locator("#map svg.wide").is_hidden()
    sizes = page.locator("svg.narrow text").evaluate_all("all => all.map(t => t.getBoundingClientRect().height)")
    assert min(sizes) >= 9


def test_tips_stay_on_a_small_screen(opened):
    page = opened(size=PHONE, reduced_motion="reduce")
    for index in (0, 11, 27):
        mark = page.locator("#windows svg.narrow .mark").nth(index)
        mark.scroll_into_view_if_needed()
        page.wait_for_timeout(50)
        mark.dispatch_event("pointerenter")
        box = page.locator("#tip").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["y"] >= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_differ_and_both_are_readable(opened, scheme):
    page = opened(color_scheme=scheme)
    ground, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.documentElement))")
    numbers = [sum(int(p) for p in c[4:-1].split(",")) for c in (ground, ink)]
    assert (numbers[0] > 600 and numbers[1] < 150) if scheme == "light" else (numbers[0] < 150 and numbers[1] > 600)
    fill = page.locator("#windows svg.wide .f-critical").first.evaluate("e => getComputedStyle(e).fill")
    assert fill == ("rgb(143, 18, 56)" if scheme == "light" else "rgb(255, 99, 132)")


def test_everything_is_there_without_scripts(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("#filter").is_hidden()
    assert page.locator("#windows svg.wide .mark title").count() == 28
    page.locator("#windows summary").first.click()
    assert page.locator("#windows-1-table").is_visible()
    assert page.locator("thead button").count() == 0


def test_print_shows_all_that_was_filtered_and_hides_what_is_for_the_screen(opened):
    page = opened()
    page.locator("#by-layer").select_option("12")
    page.emulate_media(media="print")
    assert page.locator("#filter").is_hidden() and page.locator("nav").is_hidden()
    opacity = page.locator("#windows svg.wide .mark.off").first.evaluate("e => getComputedStyle(e).opacity")
    assert opacity == "1"


def test_a_tree_of_names_is_there_for_a_screen_reader(opened):
    page = opened()
    assert page.get_by_role("region", name="Sensitivity by operator").count() == 1
    assert page.get_by_role("columnheader", name="degradation").count() >= 1
    assert page.get_by_role("table", name="Sensitivity by operator").count() == 1
    assert page.get_by_role("navigation", name="Sections").count() == 1
    assert page.locator("main").count() == page.locator("h1").count() == 1
    one = dataclasses.replace(VIEW, actions=())
    assert "Three things" not in to_html(one)
