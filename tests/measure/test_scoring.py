"""Values per sample against slow loops in float64, padding that changes none, and broken logits that are counted."""

import copy
import math
import resource

import pytest
import torch
from torch import nn

from cases import make
from letters import letters
from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.scoring import CEILING, FARTHEST, clean_run, evaluate, judge, refer, run
from noisescope.measure.workload import Choice, Completion, Question, Text, Workload

TEXTS = (
    "the cat",
    "rain",
    "a thing in a bag",
    "12 + 7 = 19",
    "other weather",
    "up",
    "by the sea, by the sea",
    "ab ab ab",
)
WORKLOADS = {
    "text": Workload.of("texts", [Text(text) for text in TEXTS]),
    "completion": Workload.of("completions", [Completion(text[:3], text[3:] + "!") for text in TEXTS]),
    "question": Workload.of("questions", [Question(text, str(i)) for i, text in enumerate(TEXTS)]),
    "choice": Workload.of(
        "choices", [Choice(text, ("a", "ab", "the sea", "by", text[::-1]), i % 5) for i, text in enumerate(TEXTS)]
    ),
}
CAUSAL = ("llama", "gpt2", "opt", "gpt_neox", "qwen3")
NUMBERS = ("nll", "perplexity", "kl_to_clean", "top1_agreement")


class Table(nn.Module):
    """A language model that looks its logits up by the last token, in a table that a test can write into."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, input_ids, attention_mask):
        return self.table[input_ids]


class Plain(nn.Module):
    """The same model without any keyword but the tokens and their mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


def table(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(128, 128, generator=torch.Generator().manual_seed(seed)).to(dtype)


def moved(model: nn.Module, by: float = 0.1) -> nn.Module:
    """A copy whose weights are a little different."""
    other = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(by * weight.std(correction=0) * torch.randn(weight.shape, generator=draw, dtype=weight.dtype))
    return other


def logits_alone(model, tokens):
    """The logits of one row, run alone and without padding, in float64."""
    with torch.no_grad():
        out = model.double()(input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=int))
    return (out if isinstance(out, torch.Tensor) else out.logits)[0].tolist()


def log_softmax(logits):
    top = max(logits)
    total = top + math.log(sum(math.exp(x - top) for x in logits))
    return [x - total for x in logits]


def slow_values(name, prepared, model, clean):
    """The values of a metric that scores tokens, by loops over rows, positions and tokens."""
    model, clean = copy.deepcopy(model), copy.deepcopy(clean)
    values = []
    for (row,) in prepared.rows:
        here, before = logits_alone(model, row.tokens), logits_alone(clean, row.tokens)
        (piece,) = row.pieces
        total = 0.0
        for k, target in enumerate(piece.targets):
            q, p = log_softmax(here[piece.start + k]), log_softmax(before[piece.start + k])
            total += {
                "nll": -q[target],
                "perplexity": -q[target],
                "kl_to_clean": sum(math.exp(b) * (b - a) for a, b in zip(q, p, strict=True)),
                "top1_agreement": float(q.index(max(q)) == p.index(max(p))),
            }[name]
        mean = total / len(piece.targets)
        values.append(math.exp(mean) if name == "perplexity" else mean)
    return values


@pytest.mark.parametrize("shape", WORKLOADS)
@pytest.mark.parametrize("name", NUMBERS)
def test_values_are_those_of_a_slow_loop_in_float64(name, shape):
    model = make("llama")
    prepared = prepare(WORKLOADS[shape], letters(opening=True), name)
    scores = evaluate(moved(model), prepared, clean=clean_run(model, prepared))
    expected = slow_values(name, prepared, moved(model), model)
    assert scores.values == pytest.approx(expected, rel=2e-4 if name == "kl_to_clean" else 1e-5)
    assert scores.broken == (0,) * len(TEXTS)
    assert len(set(scores.values)) > 1


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize(("shape", "name"), [*[("text", name) for name in NUMBERS], ("choice", "accuracy")])
def test_padding_changes_no_value(family, shape, name):
    model = make(family, "sdpa")
    together = prepare(WORKLOADS[shape], letters(opening=True), name, Settings(tokens_per_batch=1000, max_length=64))
    alone = prepare(WORKLOADS[shape], letters(opening=True), name, Settings(tokens_per_batch=1, max_length=64))
    assert (together.batches()[0].inputs["attention_mask"] == 0).any()
    one, other = (evaluate(moved(model), way, clean=clean_run(model, way)).values for way in (together, alone))
    exact = name in ("top1_agreement", "accuracy")
    assert one == (other if exact else pytest.approx(other, rel=1e-3 if name == "kl_to_clean" else 1e-5))
    assert name != "top1_agreement" or 0 < sum(one) < len(one)


@pytest.mark.parametrize("family", CAUSAL)
def test_what_stands_in_the_padding_changes_no_bit(family):
    model = make(family)
    prepared = prepare(WORKLOADS["text"], letters(), "nll", Settings(max_length=64))
    (batch,) = prepared.batches()
    before = run(model, prepared, batch)
    batch.inputs["input_ids"][batch.inputs["attention_mask"] == 0] = 77
    assert torch.equal(run(model, prepared, batch), before)


def test_a_slice_gives_the_values_of_its_samples_and_a_second_run_the_same_bits():
    model = make("llama")
    prepared = prepare(WORKLOADS["choice"], letters(), "nll")
    whole = evaluate(model, prepared)
    assert evaluate(model, prepared) == whole
    assert evaluate(model, prepared, 2, 5).values == pytest.approx(whole.values[2:5], rel=1e-5)
    with pytest.raises(BadInputError, match="items 2 to 9 of choices: it has 8"):
        evaluate(model, prepared, 2, 9)


@pytest.mark.parametrize("name", ["accuracy", "accuracy_plain"])
def test_the_right_choice_is_the_likeliest_by_brute_force(name):
    # Rows of a table, so that right and wrong are mixed.
    model = Table(table() * 2)
    endings = ("a", "ab", "the sea", "by", "cat", "tac", "under it")
    items = [Choice(text, endings[i % 3 : i % 3 + 4], i % 4) for i in range(12) for text in TEXTS]
    workload = Workload.of("choices", dict.fromkeys(items))
    prepared = prepare(workload, letters(), name)
    expected = []
    for item in workload.items:
        likely = []
        for choice in item.choices:
            tokens, start = letters().encode(f"{item.prompt} {choice}"), len(letters().encode(item.prompt))
            logs = [log_softmax(row) for row in logits_alone(copy.deepcopy(model), tokens)]
            sure = sum(logs[i - 1][tokens[i]] for i in range(start, len(tokens)))
            likely.append(sure / len(choice) if name == "accuracy" else sure)
        expected.append(float(likely.index(max(likely)) == item.answer))
    values = evaluate(model, prepared).values
    assert values == tuple(expected)
    assert 0 < sum(values) < len(values)


def test_the_two_accuracies_differ_where_length_decides():
    # Every token costs the same, so the shorter choice is the likelier one, and per byte both are equal: not right.
    model, items = Table(torch.zeros(128, 128)), [Choice("x", ("y", "yyy"), 0), Choice("x", ("y", "yyy"), 1)]
    workload = Workload.of("lengths", items)
    assert evaluate(model, prepare(workload, letters(), "accuracy_plain")).values == (1.0, 0.0)
    # (1 + 1) / 1 bytes with the space, against (3 + 1) / 3.
    assert evaluate(model, prepare(workload, letters(), "accuracy")).values == (0.0, 1.0)


def test_a_model_that_says_the_same_of_all_choices_is_wrong():
    workload = Workload.of("equal", [Choice("x", ("y", "z"), right) for right in (0, 1)])
    assert evaluate(Table(torch.zeros(128, 128)), prepare(workload, letters(), "accuracy")).values == (0.0, 0.0)


class TestAgainstClean:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
    def test_equal_logits_are_exactly_no_divergence(self, dtype, size):
        model = Table(table(dtype=dtype) * size)
        for name, best in (("kl_to_clean", 0.0), ("top1_agreement", 1.0)):
            prepared = prepare(WORKLOADS["text"], letters(), name)
            clean = clean_run(model, prepared)
            assert set(clean.scores.values) == {best}
            assert set(evaluate(model, prepared, clean=clean).values) == {best}

    @pytest.mark.parametrize("by", [1e-4, 1e-3, 1e-2, 1.0, 10.0, 40.0])
    def test_small_and_large_divergences_are_those_of_float64(self, by):
        one, other = table() * 3, table(1)
        prepared = prepare(WORKLOADS["text"], letters(), "kl_to_clean")
        clean = clean_run(Table(one), prepared)
        values = evaluate(Table(one + by * other), prepared, clean=clean).values
        p, q = one.double().log_softmax(-1), (one + by * other).double().log_softmax(-1)
        by_token = (p.exp() * (p - q)).sum(-1).clamp(max=CEILING)
        expected = [by_token[list(row.tokens)].mean().item() for (row,) in prepared.rows]
        assert values == pytest.approx(expected, rel=2e-3)

    def test_a_token_that_was_impossible_and_stays_so_is_no_divergence(self):
        one = table()
        one[:, 5] = -math.inf
        prepared = prepare(WORKLOADS["text"], letters(), "kl_to_clean")
        clean = clean_run(Table(one), prepared)
        assert set(evaluate(Table(one), prepared, clean=clean).values) == {0.0}
        again = one.clone()
        again[:, 5] = -4.0
        expected = math.log1p((torch.tensor(-4.0) - one.logsumexp(-1)).exp()[letters().encode("a")[0]])
        found = evaluate(Table(again), prepare(WORKLOADS["text"], letters(), "kl_to_clean"), clean=clean).values
        assert all(0 < value < 0.1 for value in found)
        single = prepare(Workload.of("a", [Text("aa")]), letters(), "kl_to_clean")
        clean = clean_run(Table(one), single)
        assert evaluate(Table(again), single, clean=clean).values == pytest.approx([expected], rel=1e-4)

    def test_what_clean_could_not_write_down_and_noise_makes_likely_is_seen(self):
        one, other = torch.zeros(128, 128), torch.zeros(128, 128)
        # In float32 the softmax of the first is exactly 1 and 0; the second spreads evenly over all.
        one[:, 7] = 200.0
        prepared = prepare(WORKLOADS["text"], letters(), "kl_to_clean")
        scores = evaluate(Table(other), prepared, clean=clean_run(Table(one), prepared))
        assert scores.values == pytest.approx([math.log(128)] * len(TEXTS), rel=1e-6)

    def test_a_token_that_becomes_impossible_is_as_bad_as_it_gets(self):
        one, other = table(), table()
        other[:, 5] = -math.inf
        prepared = prepare(WORKLOADS["text"], letters(), "kl_to_clean")
        scores = evaluate(Table(other), prepared, clean=clean_run(Table(one), prepared))
        assert set(scores.values) == {CEILING}
        assert set(scores.broken) == {0}

    @pytest.mark.parametrize("name", ["kl_to_clean", "top1_agreement"])
    def test_it_needs_the_clean_run_of_the_same_samples_and_preparation(self, name):
        model, workload = Table(table()), WORKLOADS["text"]
        prepared = prepare(workload, letters(), name)
        clean = clean_run(model, prepared, 0, 4)
        evaluate(model, prepared, 0, 4, clean)
        other = prepare(workload, letters(), name, Settings(tokens_per_batch=64))
        for wrong, start, stop, given in [
            (prepared, 0, 4, None),
            (prepared, 0, 5, clean),
            (prepared, 1, 5, clean),
            (prepared, 0, None, clean),
            (other, 0, 4, clean),
        ]:
            with pytest.raises(BadInputError, match=f"{name} compares with a clean run: .* expected clean_run"):
                evaluate(model, wrong, start, stop, given)
        (batch,) = prepared.batches()
        with pytest.raises(BadInputError, match="none was given"):
            judge(prepared, batch, run(model, prepared, batch), None)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_clean_run_that_is_not_finite_is_refused(self, bad):
        broken = table()
        broken[letters().encode("a")[0], 3] = bad
        prepared = prepare(WORKLOADS["text"], letters(), "kl_to_clean")
        with pytest.raises(BadInputError, match=r"texts: the clean run is not finite at \d+ of \d+ positions"):
            clean_run(Table(broken), prepared)
        # A metric that compares with nothing tells it as it is.
        assert sum(clean_run(Table(broken), prepare(WORKLOADS["text"], letters(), "nll")).scores.broken) > 0

    @pytest.mark.parametrize("name", ["kl_to_clean", "top1_agreement"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_what_does_not_fit_memory_is_kept_exactly(self, name, dtype):
        model = Table(table(dtype=dtype))
        prepared = prepare(WORKLOADS["text"], letters(), name, Settings(tokens_per_batch=40))
        inside, outside = clean_run(model, prepared), clean_run(model, prepared, memory=0)
        assert all(torch.equal(a, b) for a, b in zip(inside.references, outside.references, strict=True))
        other = Table(table(1, dtype))
        assert evaluate(other, prepared, clean=inside) == evaluate(other, prepared, clean=outside)

    def test_no_room_for_it_is_said(self):
        prepared = prepare(WORKLOADS["text"], letters(), "kl_to_clean")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(BadInputError, match=r"MiB of clean logits cannot be kept in .*TMPDIR"):
                clean_run(Table(table()), prepared, memory=0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_a_metric_that_compares_with_nothing_keeps_nothing(self):
        prepared = prepare(WORKLOADS["text"], letters(), "nll")
        clean = clean_run(Table(table()), prepared)
        assert set(clean.references) == {None}
        assert clean.scores == evaluate(Table(table()), prepared)
        assert refer(prepared, run(Table(table()), prepared, prepared.batches()[0])) is None


class TestBroken:
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize(
        ("name", "worst"), [("nll", CEILING), ("kl_to_clean", CEILING), ("top1_agreement", 0.0), ("perplexity", None)]
    )
    def test_each_broken_position_is_counted_and_gets_the_worst_value(self, name, worst, bad):
        healthy, broken = table(), table()
        broken[letters().encode("a")[0], 4] = bad
        prepared = prepare(WORKLOADS["text"], letters(), name)
        clean = clean_run(Table(healthy), prepared)
        fine, scores = (evaluate(Table(one), prepared, clean=clean) for one in (healthy, broken))
        hit = [list(row.tokens).count(letters().encode("a")[0]) for (row,) in prepared.rows]
        assert scores.broken == tuple(hit)
        assert 0 < sum(map(bool, hit)) < len(hit)
        for (row,), count, before, now in zip(prepared.rows, hit, fine.values, scores.values, strict=True):
            assert math.isfinite(now)
            assert count or now == before
            if worst is not None and count == len(row.tokens):
                assert now == worst

    def test_a_row_of_no_possible_token_is_broken_and_one_impossible_token_is_not(self):
        model = Table(table())
        model.table.data[letters().encode("t")[0]] = -math.inf
        prepared = prepare(Workload.of("t", [Text("tt"), Text("tx")]), letters(), "nll")
        assert evaluate(model, prepared).values == (CEILING, CEILING)
        assert evaluate(model, prepared).broken == (1, 1)
        model = Table(table())
        model.table.data[:, letters().encode("x")[0]] = -math.inf
        scores = evaluate(model, prepared)
        assert scores.broken == (0, 0)
        assert scores.values[0] < scores.values[1] == CEILING

    @pytest.mark.parametrize("name", ["accuracy", "accuracy_plain"])
    def test_a_choice_with_a_broken_position_is_answered_wrongly(self, name):
        t, y, z = (letters().encode(one)[0] for one in "tyz")
        logits = torch.zeros(128, 128)
        logits[letters().encode(" ")[0], y] = 50.0
        prepared = prepare(Workload.of("x", [Choice("x", ("y", "ztz"), 0)]), letters(), name)
        assert evaluate(Table(logits), prepared).values == (1.0,)
        logits[t, z] = math.nan
        assert evaluate(Table(logits), prepared) == type(evaluate(Table(logits), prepared))((0.0,), (1,))

    def test_finite_values_are_no_worse_than_broken_ones(self):
        prepared = prepare(WORKLOADS["text"], letters(), "nll")
        scores = evaluate(Table(table() * 1e4), prepared)
        assert max(scores.values) <= CEILING
        assert set(scores.broken) == {0}


class TestPositions:
    @pytest.mark.parametrize("name", ["nll", "kl_to_clean", "accuracy"])
    def test_a_model_that_computes_scored_positions_alone_gives_the_same_values(self, name):
        shape = "choice"
        model = make("llama")
        prepared = prepare(WORKLOADS[shape], letters(opening=True), name)
        few, all_of_them = (
            evaluate(way(moved(model)), prepared, clean=clean_run(way(model), prepared)).values
            for way in (lambda one: one, Plain)
        )
        assert few == pytest.approx(all_of_them, rel=1e-4)

    @pytest.mark.parametrize("says", [True, False], ids=["says which its head is", "does not"])
    def test_the_head_runs_on_what_is_scored_or_on_the_positions_that_some_row_needs(self, says):
        model, seen = make("llama"), []
        if not says:
            model.get_output_embeddings = lambda: None
        model.lm_head.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape)))
        prepared = prepare(WORKLOADS["choice"], letters(opening=True), "accuracy")
        for batch in prepared.batches():
            out = run(model, prepared, batch)
            assert out.shape == (len(batch.targets), 128)
            wanted = len(set(batch.positions.tolist()))
            assert seen.pop() == ((1, len(batch.targets), 128) if says else (len(batch.samples), wanted, 128))
            assert len(batch.targets) < len(batch.samples) * wanted
            assert wanted < batch.inputs["input_ids"].shape[1]
            assert not seen and not model.lm_head._forward_pre_hooks

    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma", "opt", "phi", "gpt_neox", "mixtral"])
    def test_logits_of_scored_positions_are_those_among_all(self, family):
        model = make(family)
        prepared = prepare(WORKLOADS["completion"], letters(opening=True), "nll")
        for batch in prepared.batches():
            with torch.no_grad():
                whole = model(**batch.inputs).logits[batch.rows, batch.positions]
            assert torch.allclose(run(model, prepared, batch), whole, rtol=1e-4, atol=1e-6)

    def test_a_head_that_is_used_otherwise_runs_as_it_is(self):
        class Odd(nn.Module):
            """Runs its head on rows and positions in one, or adds a position behind it."""

            def __init__(self, adds: bool) -> None:
                super().__init__()
                self.inner, self.adds = make("llama"), adds
                self.get_output_embeddings = self.inner.get_output_embeddings

            def forward(self, input_ids, attention_mask):
                hidden = self.inner.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
                if self.adds:
                    return nn.functional.pad(self.inner.lm_head(hidden), (0, 0, 0, 1))
                return self.inner.lm_head(hidden.flatten(0, 1)).unflatten(0, input_ids.shape)

        prepared = prepare(Workload.of("t", [Completion("ab", "cd"), Completion("abcd", "efghi")]), letters(), "nll")
        expected = evaluate(Plain(make("llama")), prepared).values
        for odd in (Odd(adds=False), Odd(adds=True)):
            assert evaluate(odd, prepared).values == pytest.approx(expected, rel=1e-5)

    def test_where_every_position_is_scored_nothing_is_copied(self):
        held = []

        class Watched(Table):
            def forward(self, input_ids, attention_mask):
                held.append(super().forward(input_ids, attention_mask))
                return held[-1]

        prepared = prepare(Workload.of("even", [Text("abcd"), Text("efgh")]), letters(), "nll")
        out = run(Watched(table()), prepared, prepared.batches()[0])
        assert out.data_ptr() == held[-1].data_ptr()
        assert torch.equal(out, held[-1].reshape(-1, 128))

    @pytest.mark.parametrize("wrap", [lambda x: {"logits": x}, lambda x: (x, None), lambda x: x])
    def test_logits_are_found_in_what_a_model_gives(self, wrap):
        class Wrapped(Table):
            def forward(self, input_ids, attention_mask):
                return wrap(super().forward(input_ids, attention_mask))

        prepared = prepare(WORKLOADS["text"], letters(), "nll")
        assert evaluate(Wrapped(table()), prepared) == evaluate(Table(table()), prepared)

    def test_a_plain_function_is_a_model(self):
        logits, prepared = table(), prepare(WORKLOADS["text"], letters(), "nll")
        found = evaluate(lambda input_ids, attention_mask: logits[input_ids], prepared)
        assert found == evaluate(Table(logits), prepared)


class TestEncoders:
    def test_a_model_that_looks_ahead_foretells_nothing(self):
        prepared = prepare(WORKLOADS["text"], letters(), "nll")
        with pytest.raises(BadInputError, match=r"depend on the tokens behind it.*embedding_shift"):
            clean_run(make("bert"), prepared)

    @pytest.mark.parametrize("family", CAUSAL)
    def test_a_model_that_does_not_is_taken_even_with_one_token_again_and_again(self, family):
        workload = Workload.of("same", [Text("aaaa"), Text("tt")])
        clean_run(make(family), prepare(workload, letters(), "nll"))

    def test_a_model_without_logits_is_refused_with_what_it_gives(self):
        prepared = prepare(WORKLOADS["text"], letters(), "nll")
        with pytest.raises(BadInputError, match=r"\(it gives last_hidden_state\); expected .*embedding_shift"):
            clean_run(make("bert").bert, prepared)

    def test_a_model_with_one_answer_a_row_is_refused(self):
        prepared = prepare(WORKLOADS["text"], letters(), "nll")
        with pytest.raises(BadInputError, match=r"logits for 1 positions of \d+ or more"):
            evaluate(lambda input_ids, attention_mask: torch.zeros(len(input_ids), 3), prepared)

    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_the_shift_of_the_mean_embedding_is_that_of_a_slow_loop(self, family):
        model = make(family)
        prepared = prepare(WORKLOADS["text"], letters(), "embedding_shift")
        values = evaluate(moved(model), prepared, clean=clean_run(model, prepared)).values
        expected = []
        for (row,) in prepared.rows:
            means = []
            for one in (copy.deepcopy(model), moved(model)):
                with torch.no_grad():
                    out = one.double()(input_ids=torch.tensor([row.tokens]), output_hidden_states=True)
                means.append(out.hidden_states[-1][0].mean(0).tolist())
            dot, squares = sum(a * b for a, b in zip(*means, strict=True)), [sum(a * a for a in m) for m in means]
            expected.append(1 - dot / math.sqrt(squares[0] * squares[1]))
        assert values == pytest.approx(expected, rel=1e-3)
        assert min(values) > 0

    def test_padding_changes_no_embedding_and_an_equal_one_has_not_moved(self):
        model = make("bert")
        together = prepare(WORKLOADS["text"], letters(), "embedding_shift", Settings(tokens_per_batch=1000))
        alone = prepare(WORKLOADS["text"], letters(), "embedding_shift", Settings(tokens_per_batch=1))
        assert set(clean_run(model, together).scores.values) == {0.0}
        one, other = (evaluate(moved(model), way, clean=clean_run(model, way)).values for way in (together, alone))
        assert one == pytest.approx(other, rel=1e-3)

    def test_a_broken_embedding_is_counted_and_farthest(self):
        model = make("bert").bert
        prepared = prepare(WORKLOADS["text"], letters(), "embedding_shift")
        clean = clean_run(model, prepared)
        broken = copy.deepcopy(model)
        broken.embeddings.word_embeddings.weight.data[letters().encode("u")[0]] = math.nan
        scores = evaluate(broken, prepared, clean=clean)
        hit = ["u" in text for text in TEXTS]
        assert [value == FARTHEST for value in scores.values] == hit
        assert scores.broken == tuple(map(int, hit))
        with pytest.raises(BadInputError, match="not finite"):
            clean_run(broken, prepared)

    def test_a_model_that_gives_no_hidden_state_has_no_embedding(self):
        prepared = prepare(WORKLOADS["text"], letters(), "embedding_shift")
        with pytest.raises(BadInputError, match="no last hidden state"):
            clean_run(lambda input_ids, attention_mask: {"loss": 0.0}, prepared)
