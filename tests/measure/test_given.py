"""Batches of tensors as samples: what of them is scored, by hand and by slow loops, for models of many kinds."""

import copy
import math
from collections import UserDict

import pytest
import torch
import transformers
from torch import nn

import noisescope as ns
from cases import SMALL, make
from letters import letters
from noisescope.core.errors import BadInputError
from noisescope.measure.batches import prepare
from noisescope.measure.given import given
from noisescope.measure.scoring import Scores, clean_run, evaluate
from noisescope.measure.workload import Text, Workload

IDS = torch.tensor([[5, 9, 17, 33, 60], [7, 8, 9, 100, 4], [20, 21, 22, 23, 24]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
BATCHES = [{"input_ids": IDS, "attention_mask": MASK}, {"input_ids": IDS[:2, :3] + 40}]
NUMBERS = ("nll", "perplexity", "kl_to_clean", "top1_agreement")


def scored(samples):
    """What is scored of each sample: (position, target) in order."""
    found = {}
    for batch in samples.batches():
        for row, position, target in zip(batch.rows, batch.positions, batch.targets, strict=True):
            found.setdefault(batch.samples[row], []).append((int(position), int(target)))
    return found


def moved(model, by=0.1):
    other = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(by * weight.std(correction=0) * torch.randn(weight.shape, generator=draw))
    return other


def values(model, batches, metric, other=None):
    """The values of a model that has been moved, against the clean one."""
    samples = given(model, batches, metric)
    return evaluate(other or moved(model), samples, clean=clean_run(model, samples)).values


class TestWhatIsScored:
    def test_a_causal_model_foretells_the_next_token_that_is_there(self):
        samples = given(make("llama"), BATCHES)
        assert scored(samples) == {
            0: [(0, 9), (1, 17), (2, 33), (3, 60)],
            1: [(0, 8), (1, 9)],
            2: [(2, 23), (3, 24)],
            3: [(0, 49), (1, 57)],
            4: [(0, 48), (1, 49)],
        }
        assert (len(samples), samples.metric.name, samples.shape, samples.view) == (
            5,
            "top1_agreement",
            "tensors",
            "positions",
        )

    def test_labels_are_shifted_for_a_causal_model_and_not_handed_to_it(self):
        labels = torch.tensor([[5, 9, 17, 33, 60], [-100, -100, 9, -100, -100], [-100, -100, -100, 3, 24]])
        samples = given(make("llama"), [{**BATCHES[0], "labels": labels}], "nll")
        assert scored(samples) == {0: [(0, 9), (1, 17), (2, 33), (3, 60)], 1: [(1, 9)], 2: [(2, 3), (3, 24)]}
        assert set(samples.batches()[0].inputs) == {"input_ids", "attention_mask"}

    def test_labels_of_an_encoder_stand_at_their_own_position(self):
        labels = torch.tensor([[-100, 9, -100, -100, 60], [7, -100, -100, -100, -100], [-100, -100, 1, -100, -100]])
        assert scored(given(make("bert"), [{**BATCHES[0], "labels": labels}], "nll")) == {
            0: [(1, 9), (4, 60)],
            1: [(0, 7)],
            2: [(2, 1)],
        }

    def test_an_encoder_without_labels_is_compared_at_every_token(self):
        found = scored(given(make("bert"), BATCHES))
        assert {sample: [position for position, _ in of] for sample, of in found.items()} == {
            0: [0, 1, 2, 3, 4],
            1: [0, 1, 2],
            2: [2, 3, 4],
            3: [0, 1, 2],
            4: [0, 1, 2],
        }

    def test_embeddings_in_place_of_tokens_need_labels_for_what_is_foretold(self):
        model = make("llama")
        batch = {"inputs_embeds": model.get_input_embeddings()(IDS).detach(), "attention_mask": MASK}
        labels = IDS.masked_fill(MASK == 0, -100)
        assert scored(given(model, [{**batch, "labels": labels}], "nll")) == scored(given(model, BATCHES[:1], "nll"))
        assert [len(of) for of in scored(given(model, [batch])).values()] == [4, 2, 2]
        with pytest.raises(BadInputError, match="nll of batch 1: it is not known what the model should say"):
            given(model, [batch], "nll")
        by_tokens = values(model, BATCHES[:1], "nll", model)
        assert values(model, [{**batch, "labels": labels}], "nll", model) == pytest.approx(by_tokens, rel=1e-6)

    def test_one_answer_a_row_is_one_position(self):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        batch = {"input": torch.randn(6, 4), "labels": torch.tensor([0, 1, 2, 2, 1, 0])}
        assert scored(given(model, [batch], "nll")) == {i: [(0, int(t))] for i, t in enumerate(batch["labels"])}
        assert [len(of) for of in scored(given(model, [{"input": batch["input"]}])).values()] == [1] * 6

    def test_a_row_with_nothing_to_score_is_named(self):
        labels = torch.full_like(IDS, -100)
        labels[0] = 5
        with pytest.raises(BadInputError, match="batch 2, row 2: nothing to score"):
            given(make("llama"), [BATCHES[0], {**BATCHES[0], "labels": labels}])


def slow_values(name, model, other, rows):
    """The values of a metric by loops over rows, positions and classes, each row alone, in float64."""
    found = []
    for inputs, places in rows:
        with torch.no_grad():
            p, q = (copy.deepcopy(one).double()(**inputs) for one in (model, other))
        p, q = ((out if isinstance(out, torch.Tensor) else out.logits).reshape(-1, out_width(out)) for out in (p, q))
        total = 0.0
        for position, target in places:
            logs = [row - math.log(sum(math.exp(x) for x in row.tolist())) for row in (p[position], q[position])]
            clean, noisy = (log.tolist() for log in logs)
            total += {
                "nll": -noisy[target],
                "perplexity": -noisy[target],
                "kl_to_clean": sum(math.exp(a) * (a - b) for a, b in zip(clean, noisy, strict=True)),
                "top1_agreement": float(clean.index(max(clean)) == noisy.index(max(noisy))),
            }[name]
        mean = total / len(places)
        found.append(math.exp(mean) if name == "perplexity" else mean)
    return found


def out_width(out):
    return (out if isinstance(out, torch.Tensor) else out.logits).shape[-1]


class TestValues:
    @pytest.mark.parametrize("name", NUMBERS)
    def test_of_a_language_model(self, name):
        model = make("llama")
        where = scored(given(model, BATCHES))
        alone = [IDS[0], IDS[1, :3], IDS[2, 2:], *(IDS[:2, :3] + 40)]
        # The third row stands behind padding, so its positions are fewer when it is alone.
        shift = [0, 0, 2, 0, 0]
        rows = [
            ({"input_ids": ids[None], "position_ids": torch.arange(s, s + len(ids))[None]}, [(p - s, t) for p, t in of])
            for ids, s, of in zip(alone, shift, where.values(), strict=True)
        ]
        expected = slow_values(name, model, moved(model), rows)
        assert values(model, BATCHES, name) == pytest.approx(expected, rel=2e-4 if name == "kl_to_clean" else 1e-5)

    @pytest.mark.parametrize("name", NUMBERS)
    @pytest.mark.parametrize("shape", [(6, 4), (6, 5, 4)], ids=["row", "row and position"])
    def test_of_a_plain_module(self, name, shape):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        batch = {"input": torch.randn(shape), "labels": torch.randint(0, 3, shape[:-1])}
        pairs = zip(batch["input"].double(), batch["labels"].reshape(6, -1).tolist(), strict=True)
        rows = [({"input": x[None]}, list(enumerate(labels))) for x, labels in pairs]
        found = values(model, [batch], name, moved(model, 2.0))
        assert found == pytest.approx(slow_values(name, model, moved(model, 2.0), rows), rel=1e-4)
        assert len(set(found)) > 1

    def test_are_those_of_the_same_texts_prepared_from_a_workload(self):
        model = make("llama")
        texts = ("the cat", "rain falls", "by the sea")
        prepared = prepare(Workload.of("texts", [Text(text) for text in texts]), letters(), "nll")
        encoded = letters()(list(texts), padding=True, return_tensors="pt")
        encoded.pop("token_type_ids", None)
        found = evaluate(model, given(model, [encoded], "nll")).values
        assert found == pytest.approx(evaluate(model, prepared).values, rel=1e-5)

    def test_of_the_library_itself_for_its_own_labels(self):
        for family in ("llama", "bert", "gpt2"):
            model, labels = make(family), IDS.clone()
            labels[0, 2] = -100
            batch = {"input_ids": IDS[:1], "labels": labels[:1]}
            with torch.no_grad():
                loss = float(model(**batch).loss)
            assert evaluate(model, given(model, [batch], "nll")).values == pytest.approx([loss], rel=1e-5)

    @pytest.mark.parametrize(
        ("family", "kind"),
        [("bert", transformers.BertForSequenceClassification), ("llama", transformers.LlamaForSequenceClassification)],
    )
    def test_of_a_classifier_of_sequences(self, family, kind):
        torch.manual_seed(0)
        model = kind(transformers.AutoConfig.for_model(family, **SMALL, num_labels=3)).eval()
        batch = {"input_ids": IDS, "attention_mask": MASK, "labels": torch.tensor([0, 2, 1])}
        with torch.no_grad():
            loss = float(model(**batch).loss)
        found = evaluate(model, given(model, [batch], "nll")).values
        assert sum(found) / 3 == pytest.approx(loss, rel=1e-5)
        assert [len(of) for of in scored(given(model, BATCHES[:1])).values()] == [1, 1, 1]

    def test_of_a_model_that_needs_its_labels_to_run(self):
        torch.manual_seed(0)
        config = transformers.T5Config(
            d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=128, decoder_start_token_id=0
        )
        model = transformers.T5ForConditionalGeneration(config).eval()
        labels = torch.tensor([[3, 4, 5, -100], [9, 8, -100, -100], [1, 1, 1, 1]])
        batch = {"input_ids": IDS, "attention_mask": MASK, "labels": labels}
        samples = given(model, [batch], "nll")
        assert scored(samples)[0] == [(0, 3), (1, 4), (2, 5)]
        for row in range(3):
            with torch.no_grad():
                loss = float(model(**{name: tensor[row : row + 1] for name, tensor in batch.items()}).loss)
            assert evaluate(model, samples, row, row + 1).values == pytest.approx([loss], rel=1e-5)

    @pytest.mark.parametrize("name", ["kl_to_clean", "top1_agreement", "embedding_shift"])
    def test_nothing_injected_is_exactly_no_harm_and_noise_is_some(self, name):
        model = make("llama")
        samples = given(model, BATCHES, name)
        clean = clean_run(model, samples)
        best = 1.0 if name == "top1_agreement" else 0.0
        assert set(evaluate(model, samples, clean=clean).values) == {best}
        with ns.inject(model, ns.noise(scale=0.5), operators=["linear"]):
            assert set(evaluate(model, samples, clean=clean).values) != {best}

    def test_of_a_model_with_a_decoder_of_its_own(self):
        torch.manual_seed(0)
        config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=128)
        model = transformers.T5ForConditionalGeneration(config).eval()
        batch = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS.flip(1)}
        # The mask is that of the encoder: it says nothing of the decoder's positions, of which there are as many.
        assert [len(of) for of in scored(given(model, [batch])).values()] == [5, 5, 5]

    def test_a_broken_row_is_counted(self):
        model = nn.Linear(4, 3)
        batch = {"input": torch.randn(3, 4)}
        samples = given(model, [batch], "kl_to_clean")
        clean = clean_run(model, samples)
        batch["input"][1, 0] = math.nan
        scores = evaluate(model, samples, clean=clean)
        assert scores == Scores((0.0, 100.0, 0.0), (0, 1, 0))


class TestEmbeddings:
    def test_are_what_a_model_without_logits_is_judged_by(self):
        model = make("bert").bert
        samples = given(model, BATCHES)
        assert (samples.metric.name, samples.view) == ("embedding_shift", "whole")
        found = evaluate(moved(model), samples, clean=clean_run(model, samples)).values
        expected = []
        for ids, mask in [*zip(IDS, MASK, strict=True), *zip(IDS[:2, :3] + 40, torch.ones(2, 3), strict=True)]:
            means = []
            for one in (model, moved(model)):
                with torch.no_grad():
                    out = one(input_ids=ids[None], attention_mask=mask[None]).last_hidden_state[0]
                means.append(out[mask.bool()].double().mean(0))
            expected.append(1 - float(torch.cosine_similarity(*means, dim=0)))
        assert found == pytest.approx(expected, rel=1e-3)

    @pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)])
    def test_of_a_plain_module_are_what_it_gives(self, shape):
        torch.manual_seed(0)
        model, x = nn.Linear(4, 6), torch.randn(shape)
        found = values(model, [{"input": x}], "embedding_shift")
        with torch.no_grad():
            one, other = (m(x).double().reshape(5, -1, 6).mean(1) for m in (model, moved(model)))
        assert found == pytest.approx((1 - torch.cosine_similarity(one, other)).tolist(), rel=1e-3)

    def test_other_metrics_need_logits(self):
        with pytest.raises(BadInputError, match="kl_to_clean of batch 1: the model gives no logits; take embedding"):
            given(make("bert").bert, BATCHES, "kl_to_clean")
        with pytest.raises(BadInputError, match="logits of one class"):
            given(nn.Linear(4, 1), [{"input": torch.randn(3, 4)}])


class TestSlices:
    def test_rows_of_two_batches_never_run_together(self):
        samples = given(make("llama"), BATCHES)
        assert [batch.samples for batch in samples.batches()] == [(0, 1, 2), (3, 4)]
        assert [batch.samples for batch in samples.batches(1, 4)] == [(1, 2), (3,)]
        assert [batch.samples for batch in samples.batches(3)] == [(3, 4)]
        assert torch.equal(samples.batches(1, 4)[1].inputs["input_ids"], IDS[:1, :3] + 40)
        for start, stop in [(0, 6), (2, 2), (-1, 2)]:
            with pytest.raises(BadInputError, match="of the given batches: it has 5"):
                samples.batches(start, stop)

    @pytest.mark.parametrize("name", NUMBERS)
    def test_a_slice_gives_the_values_of_its_rows(self, name):
        model = make("llama")
        samples, other = given(model, BATCHES, name), moved(model)
        whole = evaluate(other, samples, clean=clean_run(model, samples))
        assert evaluate(other, samples, clean=clean_run(model, samples)) == whole
        part = evaluate(other, samples, 1, 4, clean_run(model, samples, 1, 4))
        assert part.values == pytest.approx(whole.values[1:4], rel=1e-4)

    def test_other_tensors_travel_along_by_row_and_one_for_all_stays(self):
        seen = []

        class Watched(nn.Module):
            def forward(self, pixels, kind, bias, factor):
                seen.append((tuple(pixels.shape), kind.tolist(), tuple(bias.shape), float(factor)))
                return pixels.flatten(1)[:, :3] + kind[:, None] + bias * factor

        batch = {
            "bias": torch.ones(1, 3),
            "pixels": torch.randn(4, 3, 2, 2),
            "kind": torch.arange(4),
            "factor": torch.tensor(2.0),
        }
        samples = given(Watched(), [batch], "kl_to_clean")
        clean_run(Watched(), samples, 1, 3)
        assert seen == [((1, 3, 2, 2), [0], (1, 3), 2.0), ((2, 3, 2, 2), [1, 2], (1, 3), 2.0)]

    def test_one_row_of_each_kind_of_batch_is_run_to_see_what_it_gives(self):
        seen = []
        model = make("bert")
        model.bert.embeddings.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[:2])))
        given(model, [BATCHES[0], BATCHES[1], BATCHES[0], BATCHES[1]])
        # One row of each kind, and once two rows that differ in a token, to see whether the model looks ahead.
        assert seen == [(1, 5), (2, 5), (1, 3)]


class TestKey:
    def test_it_names_the_tensors_and_the_metric(self):
        model = make("llama")
        key = given(model, BATCHES).key
        same = [
            [{name: tensor.clone() for name, tensor in reversed(batch.items())} for batch in BATCHES],
            [UserDict(batch) for batch in BATCHES],
            [{**BATCHES[0], "input_ids": IDS.t().contiguous().t()}, BATCHES[1]],
        ]
        assert {given(model, batches).key for batches in same} == {key}
        changed = BATCHES[1]["input_ids"].clone()
        changed[1, 2] += 1
        others = [
            given(model, BATCHES, "nll"),
            given(model, BATCHES[::-1]),
            given(model, BATCHES[:1]),
            given(model, [BATCHES[0], {"input_ids": changed}]),
            given(model, [BATCHES[0], {**BATCHES[1], "labels": BATCHES[1]["input_ids"] - 1}]),
            given(model, [BATCHES[0], {**BATCHES[1], "attention_mask": torch.ones(2, 3)}]),
            # The same tensors, but what is scored of them follows from the model.
            given(make("bert"), BATCHES),
        ]
        assert len({key, *(one.key for one in others)}) == len(others) + 1

    def test_the_clean_run_of_other_batches_is_refused(self):
        model = make("llama")
        clean = clean_run(model, given(model, BATCHES))
        with pytest.raises(BadInputError, match="compares with a clean run"):
            evaluate(model, given(model, BATCHES[::-1]), clean=clean)


@pytest.mark.parametrize(
    ("batches", "named"),
    [
        ([], "no batches"),
        ([[IDS]], "batch 1 is list; expected a dict of tensors"),
        ([BATCHES[0], {"input_ids": IDS.tolist()}], "batch 2 is {'input_ids': 'list'}; expected a dict of tensors"),
        ([{}], "batch 1 has no rows"),
        ([{"input_ids": IDS[:0]}], "batch 1 has no rows"),
        ([{"input_ids": torch.tensor(3)}], "batch 1 has no rows"),
        ([{"input_ids": IDS, "attention_mask": MASK[:2]}], r"batch 1 of 3 rows holds {'attention_mask': \(2, 5\)}"),
        (
            [{"input_ids": IDS, "strange": IDS}],
            r"cannot be called with batch 1, as model\(input_ids \(3, 5\), strange \(3, 5\)\)",
        ),
        ([{"input_ids": IDS, "labels": IDS + 100}], "batch 1: label 133; expected 0 to 127, or -100"),
        ([{"input_ids": IDS, "labels": IDS - 50}], "batch 1: label -41; expected 0 to 127, or -100"),
    ],
)
def test_what_cannot_be_samples_is_named(batches, named):
    model = make("llama")
    plain = model.forward

    def strict(input_ids, attention_mask=None, labels=None, logits_to_keep=0):
        return plain(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep)

    model.forward = strict
    with pytest.raises(BadInputError, match=named):
        given(model, batches)


def test_a_metric_that_does_not_fit_is_refused():
    with pytest.raises(BadInputError, match="accuracy fits question and choice items, and these are tensors items"):
        given(make("llama"), BATCHES, "accuracy")
