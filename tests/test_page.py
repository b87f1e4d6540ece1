"""The page that shows decoding step by step: its data against decoding, and the page itself in a browser."""

import base64
import gzip
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from maskmi import page
from maskmi.decoding import Decision, MIGuided, Naive, Sequential, decode
from maskmi.decoding.sources import HeadMatrix
from maskmi.model import Output
from maskmi.page import Example, Recording
from maskmi.sudoku.decoding_reports import from_easy_to_hard
from maskmi.tabular import TabularModel

# A chain of three bits, each like the one before with probability 0.9, of which the first is known to be 0.
# P(second = 0) = 0.9, so its entropy is -0.9 ln 0.9 - 0.1 ln 0.1 = 0.32508; P(third = 0) = 0.81 + 0.01 = 0.82, entropy
# 0.47139. Once the second is 0, the third is 0 with 0.9 too. Their mutual information is 0.47139 - 0.32508 = 0.14631.
NEAR, FAR, SHARED = 0.32508, 0.47139, 0.14631
MASK = 2


def shares(hidden, masked):
    """A head that knows the mutual information of the chain."""
    pairs = masked[:, :, None] & masked[:, None, :] & ~torch.eye(masked.shape[1], dtype=torch.bool)
    return pairs * SHARED


def recorded(decoders, **options):
    options = {
        "names": ["a chain"],
        "verdict": lambda written, truth: f"{int((written == truth).sum())} right",
    } | options
    tokens, truth = torch.tensor([[0, MASK, MASK]]), torch.tensor([[0, 0, 1]])
    return page.record(TabularModel.chain(3, 2), shares, tokens, truth, decoders, **options)


def levels(packed: str) -> list[int]:
    return list(base64.b64decode(packed))


def test_a_recording_is_what_was_decoded():
    (example,) = recorded({"one": Sequential(), "two": Naive(2)})
    one, two = example.recordings["one"], example.recordings["two"]
    assert one.states.tolist() == [[0, MASK, MASK], [0, 0, MASK], [0, 0, 0]]
    assert two.states.tolist() == [[0, MASK, MASK], [0, 0, 0]]
    assert one.entropy.numpy() == pytest.approx(np.array([[0, NEAR, FAR], [0, 0, NEAR]]), abs=1e-5)
    assert one.information[0].tolist() == torch.tensor([[0, 0, 0], [0, 0, SHARED], [0, SHARED, 0]]).tolist()
    assert not one.information[1].any()  # a single masked position has no pair
    assert (one.passes, two.passes) == (2, 1)
    assert one.verdict == "2 right" and example.name == "a chain" and example.truth.tolist() == [0, 0, 1]


def test_entropies_are_those_that_the_decoder_saw():
    model = TabularModel.random(3, length=5, values=3)
    tokens = torch.full((2, 5), 3)
    decoder = MIGuided(3.0, pairwise=HeadMatrix(shares))
    options = {"seed": 5, "temperature": 1.0}
    found = page.record(model, shares, tokens, tokens, {"mi": decoder}, names="ab", verdict=lambda *_: "", **options)
    run = decode(model, tokens, decoder, keep_trace=True, keep_matrix=True, **options)
    commits, steps = run.trace.commits, run.trace.steps
    assert len({*commits["step"].tolist()}) < 5  # some of its steps commit several
    for row, example in enumerate(found):
        recording = example.recordings["mi"]
        assert torch.equal(recording.states[-1], run.tokens[row]) and recording.passes == run.passes[row]
        mine = commits["sequence"] == row
        at = commits["step"][mine], commits["position"][mine]
        assert torch.allclose(recording.entropy[at], commits["entropy"][mine])
        assert torch.equal(recording.states[1:][at], commits["value"][mine])
        assert torch.equal(recording.information, steps["matrix"][steps["sequence"] == row])


class Coins:
    """Independent positions, padding allowed; the later one is, the more it is a tail (1)."""

    values, hidden_size, device = "HT", 1, torch.device("cpu")

    def __call__(self, tokens, attention=False):
        log_odds = torch.arange(1.0, tokens.shape[1] + 1).expand(tokens.shape)
        return Output(torch.stack([torch.zeros_like(log_odds), log_odds], -1), torch.zeros(*tokens.shape, 1))


def changes_its_mind(view):
    """Commits the first two, then the third while it masks the first again, then that."""
    wanted = torch.tensor([[True, True, False], [False, False, True], [True, False, False]])
    again = torch.tensor([[False, False, False], [True, False, False], [False, False, False]])
    return Decision(commit=wanted[view.step], remask=again[view.step])


def test_masking_again_is_a_change_like_any_other():
    tokens = torch.full((1, 3), MASK)
    options = {"names": ["a"], "verdict": lambda *_: ""}
    decoders = {"one": changes_its_mind, "two": Sequential()}
    (example,) = page.record(Coins(), shares, tokens, torch.ones_like(tokens), decoders, **options)
    assert example.recordings["one"].states.tolist() == [[MASK] * 3, [1, 1, MASK], [MASK, 1, 1], [1, 1, 1]]
    data = page.page_data([example], "HT")
    steps = data["examples"][0]["runs"][0]["steps"]
    assert [step["changes"] for step in steps] == [[[0, 1], [1, 1]], [[0, MASK], [2, 1]], [[0, 1]]]


def test_padding_is_left_out():
    tokens = torch.tensor([[MASK, MASK, MASK], [MASK, 0, 3]])  # 3 is padding
    truth = torch.tensor([[1, 1, 1], [0, 0, 3]])
    seen = []
    options = {"names": ["long", "short"], "verdict": lambda *both: seen.append(both) or ""}
    long, short = page.record(Coins(), shares, tokens, truth, {"one": Sequential()}, **options)
    assert long.recordings["one"].states.shape == (4, 3)
    assert short.recordings["one"].states.tolist() == [[MASK, 0], [1, 0]] and short.truth.tolist() == [0, 0]
    assert short.recordings["one"].entropy.shape == (1, 2) and short.recordings["one"].information.shape == (1, 2, 2)
    assert [part.tolist() for part in seen[1]] == [[1, 0], [0, 0]]


def test_numbers_are_roots_in_one_byte():
    data = page.page_data(recorded({"one": Sequential(), "two": Naive(2)}), "01")
    assert data["scale"] == pytest.approx({"entropy": FAR, "information": SHARED}, abs=1e-5)
    (example,) = data["examples"]
    assert (example["places"], example["start"], example["truth"]) == (["1", "2", "3"], [0, MASK, MASK], [0, 0, 1])
    one, two = example["runs"]
    assert (one["name"], one["passes"], two["passes"]) == ("one", 2, 1)
    assert [step["changes"] for step in one["steps"]] == [[[1, 0]], [[2, 0]]]
    assert [step["changes"] for step in two["steps"]] == [[[1, 0], [2, 0]]]
    near = round(255 * math.sqrt(NEAR / FAR))  # 255 · 0.83044 = 211.8
    assert near == 212
    assert [levels(step["entropy"]) for step in one["steps"]] == [[near, 255], [near]]
    assert [levels(step["information"]) for step in one["steps"]] == [[255], []]


def test_pairs_are_told_by_rows():
    masked = torch.tensor([[MASK, 0, MASK, MASK]])
    matrix = torch.zeros(1, 4, 4)
    for (i, j), value in {(0, 2): 1.0, (0, 3): 0.25, (2, 3): 0.0}.items():
        matrix[0, i, j] = matrix[0, j, i] = value
    one = Recording(torch.cat([masked, torch.zeros_like(masked)]), torch.zeros(1, 4), matrix, 1, "")
    data = page.page_data([Example("a", torch.zeros(4), {"one": one, "two": one})], "01")
    # Roots of 1, 1/4 and 0, times 255: 255, 127.5 (to the even 128), 0.
    assert levels(data["examples"][0]["runs"][0]["steps"][0]["information"]) == [255, 128, 0]


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(ValueError, match="nothing is masked in sequence 0"):
        page.record(Coins(), shares, torch.ones(1, 3).long(), torch.ones(1, 3), {}, names="a", verdict=None)
    with pytest.raises(ValueError, match="as many truths and names, not 1 and 2"):
        recorded({"one": Sequential()}, names=["a", "b"])
    with pytest.raises(ValueError, match="at least one example"):
        page.page_data([], "01")
    (example,) = recorded({"one": Sequential()})
    with pytest.raises(ValueError, match="'a chain' needs two decoders or more"):
        page.page_data([example], "01")
    one = example.recordings["one"]
    later = Recording(one.states[1:], one.entropy[1:], one.information[1:], 1, "")
    with pytest.raises(ValueError, match="began with the same state"):
        page.page_data([Example("a", example.truth, {"one": one, "two": later})], "01")


def test_puzzles_go_from_easy_to_hard():
    grades = np.array([0, 3, 0, 1, 0, 1, 3])
    # Five among three grades: two of the hardest, two of the next, one easy one.
    assert from_easy_to_hard(grades, 5) == [0, 3, 5, 1, 6]
    assert from_easy_to_hard(grades, 1) == [1]


# A full grid, three cells of which are blank: r1c1, r1c2 and r9c9.
TRUTH = torch.tensor([(3 * (r % 3) + r // 3 + c) % 9 for r in range(9) for c in range(9)])
BLANK = [0, 1, 80]
NAME = "</script><img src=x onerror='window.broken = true'> & \"quotes\""
TITLE = "Two decoders </title><script>window.broken = true</script>"


def board(order: list[list[int]], wrong: int | None = None) -> Recording:
    """A recording that commits the blanks in this order, with entropies and information that do not change."""
    states, entropy, information = [TRUTH.clone()], torch.zeros(81), torch.zeros(81, 81)
    states[0][BLANK] = 9
    entropy[BLANK] = torch.tensor([0.1, 0.2, 0.4])
    for i, j, value in ((0, 1, 0.3), (0, 80, 0.05), (1, 80, 0.1)):
        information[i, j] = information[j, i] = value
    for step in order:
        states.append(states[-1].clone())
        states[-1][step] = TRUTH[step]
        if wrong in step:
            states[-1][wrong] = (TRUTH[wrong] + 1) % 9
    steps, verdict = len(order), "solved" if wrong is None else "not solved"
    return Recording(torch.stack(states), entropy.expand(steps, -1), information.expand(steps, -1, -1), steps, verdict)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    runs = {"one by one": board([[0], [1], [80]]), "all at once": board([BLANK], wrong=80)}
    start = torch.full((12,), 9)
    state = torch.stack([start, torch.zeros(12).long()])
    short = Recording(state, torch.ones(1, 12), torch.zeros(1, 12, 12), 1, "written")
    examples = [Example("a board", TRUTH, runs), Example(NAME, torch.zeros(12), {"a": short, "b": short})]
    folder = tmp_path_factory.mktemp("a page") / "made"
    return page.save(folder, "two", examples, title=TITLE, description="a & b", values="123456789")


def test_the_page_is_one_file_that_loads_nothing(saved):
    text = saved.read_text(encoding="utf-8")
    assert saved.name == "two.html" and saved.stat().st_size < 700_000  # most of it BokehJS
    assert re.search(r'Content-Security-Policy"\s+content="default-src \'none\'', text)
    assert "http://" not in text and "https://" not in text
    tags = re.findall(r"<[a-z][^>]*>", text)
    assert len(tags) > 30 and not [tag for tag in tags if re.search(r"\s(src|href)\s*=", tag)]
    assert text.count("<title>Two decoders &lt;/title&gt;&lt;script&gt;") == 1 and "<p>a &amp; b</p>" in text
    packed = re.search(r'id="data">([^<]*)</script>', text)[1]
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert [example["name"] for example in data["examples"]] == ["a board", NAME]


@pytest.fixture(scope="module")
def started():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium and its driver here: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LD_PRELOAD", raising=False)  # an allocator for tensors is nothing for a browser
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        yield browser
        browser.quit()


@pytest.fixture
def browser(started, saved):
    """A desktop's window with the page, freshly opened, whose logs must have no errors in the end."""
    resize(started, 1280, 1000)
    media(started, {})
    started.get_log("browser"), started.get_log("performance")
    started.get(saved.as_uri())
    WebDriverWait(started, 60).until(lambda b: b.find_elements(By.CSS_SELECTOR, "body[data-ready]"))
    yield started
    assert [entry for entry in started.get_log("browser") if entry["level"] == "SEVERE"] == []
    messages = [json.loads(entry["message"])["message"] for entry in started.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked == [saved.as_uri()]


def resize(browser, width, height, mobile=False):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def media(browser, features):
    found = [{"name": name, "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": found})


def all_of(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def texts(browser, selector):
    return [element.text for element in all_of(browser, selector)]


def cells(browser, panel):
    return all_of(browser, f"section:nth-of-type({panel + 1}) .cells > .cell")


def marks(cell):
    return set(cell.get_attribute("class").split()) - {"cell"}


def press(browser, key):
    ActionChains(browser).send_keys(key).perform()


def test_two_decoders_stand_side_by_side(browser):
    assert [Select(box).first_selected_option.text for box in all_of(browser, "section > select")] == [
        "one by one",
        "all at once",
    ]
    first, second = texts(browser, ".facts")
    assert first.splitlines() == [
        "Step 1 of 3: commits 1 of 3 masked",
        "mutual information among what it commits: 0 nats",
        "3 passes in all; solved",
    ]
    # Three pairs: 0.3 + 0.05 + 0.1
    assert second.splitlines()[:2] == [
        "Step 1 of 1: commits 3 of 3 masked",
        "mutual information among what it commits: 0.45 nats",
    ]
    left, right = cells(browser, 0), cells(browser, 1)
    assert len(left) == len(right) == 81
    assert [marks(left[i]) for i in (0, 1, 2)] == [{"masked", "now"}, {"masked"}, {"given"}]
    assert marks(right[80]) == {"masked", "now", "wrong"}
    assert (left[0].text, left[1].text, right[80].text) == ("1", "", str(int(TRUTH[80] + 1) % 9 + 1))
    assert "✗" in browser.execute_script("return getComputedStyle(arguments[0], '::before').content", right[80])


def test_buttons_slider_and_arrow_keys_step(browser):
    def step():
        return texts(browser, ".facts")[0].splitlines()[0]

    browser.find_element(By.ID, "next").click()
    assert step() == "Step 2 of 3: commits 1 of 2 masked"
    assert texts(browser, ".facts")[1].splitlines()[:2] == ["Result after step 1", "1 of 3 differ from the truth"]
    browser.find_element(By.ID, "last").click()
    assert step() == "Result after step 3"
    browser.find_element(By.ID, "back").click()
    assert step() == "Step 3 of 3: commits 1 of 1 masked"
    browser.find_element(By.ID, "first").click()
    press(browser, Keys.ARROW_RIGHT)
    press(browser, Keys.ARROW_RIGHT)
    press(browser, Keys.ARROW_LEFT)
    assert step().startswith("Step 2 of 3")
    slider = browser.find_element(By.ID, "step")
    slider.send_keys(Keys.ARROW_RIGHT)
    assert step().startswith("Step 3 of 3") and slider.get_attribute("aria-valuetext") == "step 3"
    slider.send_keys(Keys.HOME)
    assert step().startswith("Step 1 of 3")


def test_it_plays_to_the_end_and_can_be_paused(browser):
    button = browser.find_element(By.ID, "play")
    button.click()
    assert button.get_attribute("aria-label") == "pause"
    WebDriverWait(browser, 20).until(lambda b: texts(b, ".facts")[0].startswith("Result"))
    assert button.get_attribute("aria-label") == "play"


@pytest.mark.parametrize("how", ["hover", "focus", "tap"])
def test_a_cell_tells_its_partners(browser, how):
    left, right = cells(browser, 0), cells(browser, 1)
    if how == "hover":
        ActionChains(browser).move_to_element(left[0]).perform()
    elif how == "focus":
        browser.execute_script("arguments[0].focus()", left[0])
    else:
        left[0].click()
    first, second = texts(browser, ".partners")
    assert first == (
        "r1c1: masked, entropy 0.10 nats, 1 is committed now. Strongest partners (nats): r1c2 0.30, r9c9 0.050"
    )
    assert second.startswith("r1c1: masked")  # the same cell in the other decoding
    assert [cell.get_attribute("data-rank") for cell in (left[1], left[80], left[2])] == ["1", "2", "0"]
    assert {"partner"} <= marks(left[1]) & marks(right[80]) and "chosen" in marks(left[0])
    assert left[80].get_attribute("aria-label") == "r9c9: masked, entropy 0.40 nats"
    wrong = f"{right[80].text} is committed now, differs from the truth, {int(TRUTH[80]) + 1}"
    assert right[80].get_attribute("aria-label") == f"r9c9: masked, entropy 0.40 nats, {wrong}"
    assert left[2].get_attribute("aria-label") == "r1c3: 3, given"


def test_the_board_is_walked_by_arrow_keys(browser):
    left = cells(browser, 0)
    assert [cell.get_attribute("tabindex") for cell in left].count("0") == 1  # one stop of the Tab key
    browser.execute_script("arguments[0].focus()", left[0])
    for key, at in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_DOWN, 10), (Keys.ARROW_LEFT, 9), (Keys.ARROW_UP, 0)):
        press(browser, key)
        assert browser.switch_to.active_element == left[at]
    press(browser, Keys.PAGE_DOWN)
    assert texts(browser, ".facts")[0].startswith("Step 2 of 3") and browser.switch_to.active_element == left[0]
    assert texts(browser, ".partners")[0] == "r1c1: 1, committed in step 1."


def test_another_example_with_an_untrusted_name(browser):
    box = Select(browser.find_element(By.ID, "example"))
    assert [option.text for option in box.options] == ["a board", NAME]
    box.select_by_index(1)
    assert len(cells(browser, 0)) == 12 and texts(browser, ".facts")[0].startswith("Step 1 of 1: commits 12 of 12")
    assert [Select(box).first_selected_option.text for box in all_of(browser, "section > select")] == ["a", "b"]
    assert browser.title == TITLE and not all_of(browser, "img")
    assert browser.execute_script("return window.broken === undefined")


def test_the_map_says_what_it_shows(browser):
    label = (
        "Map of mutual information. Strongest pairs (nats): r1c1 and r1c2 0.30, r1c2 and r9c9 0.10, r1c1 and r9c9 0.050"
    )
    maps = all_of(browser, ".map")
    assert [figure.get_attribute("aria-label") for figure in maps] == [label, label]
    image = """const source = Bokeh.documents[0].get_model_by_name("source").data;
        return [source.nats[0][81 * 1 + 80], source.image[0][81 * 1 + 80], isNaN(source.image[0][81 * 2 + 3])];"""
    nats, root, visible_is_missing = browser.execute_script(image)
    assert (
        visible_is_missing and nats == pytest.approx(0.1, abs=1e-3) and root == pytest.approx(math.sqrt(0.1), abs=1e-3)
    )


@pytest.mark.parametrize("example", [0, 1])
def test_nothing_is_cut_off_on_a_phone(browser, example):
    resize(browser, 360, 740, mobile=True)
    Select(browser.find_element(By.ID, "example")).select_by_index(example)
    width = "return [document.documentElement.scrollWidth, innerWidth]"
    WebDriverWait(browser, 10).until(lambda b: b.execute_script(width) == [360, 360])
    left, right = (cells(browser, panel)[0].rect for panel in (0, 1))
    assert right["y"] > left["y"] + 300 and left["x"] == right["x"]  # one below the other
    assert left["width"] >= 24 and abs(left["width"] - left["height"]) < 1.5


def test_it_follows_the_reader_s_colours_and_wish_for_rest(browser):
    def look(selector, name):
        return browser.execute_script(
            "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name
        )

    assert look("body", "backgroundColor") == "rgb(255, 255, 255)" and look(".cell", "transitionDuration") == "0.2s"
    media(browser, {"prefers-color-scheme": "dark", "prefers-reduced-motion": "reduce"})
    assert look("body", "backgroundColor") == "rgb(27, 28, 30)" and look(".cell", "transitionDuration") == "0s"
    paper = "return Bokeh.documents[0].get_model_by_name('plot').border_fill_color"
    WebDriverWait(browser, 10).until(lambda b: b.execute_script(paper) == "rgb(27, 28, 30)")
