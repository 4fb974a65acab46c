"""The small model that is built: its tokenizer loses nothing, and equal seeds give equal weights."""

import torch

from noisescope.measure.word_problems import problems, texts, vocabulary
from noisescope.model.load import load
from noisescope.model.pretrained import quiet
from noisescope.model.small import small_model


def test_the_tokenizer_knows_every_piece_of_every_text():
    tokenizer = small_model(vocabulary(), width=16, layers=1, seed=0).tokenizer
    split = problems(500, 50, 50, 40)
    said = [f"{item.question} {item.answer}" for item in (*split.train.items, *split.test.items)]
    said += [item.text for item in texts(50, 20, 10).test.items]
    for text in said:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == text and tokenizer.pad_token_id not in tokens


def test_numbers_are_read_digit_by_digit():
    tokenizer = small_model(vocabulary(), width=16, layers=1, seed=0).tokenizer
    assert [tokenizer.decode([t]) for t in tokenizer.encode(" has 47", add_special_tokens=False)] == [
        " has",
        " ",
        "4",
        "7",
    ]


def test_equal_seeds_give_equal_weights_and_others_others():
    one, same, other = (small_model(vocabulary(), width=16, layers=2, seed=seed) for seed in (0, 0, 1))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_it_is_saved_and_loaded_like_any_other(tmp_path):
    made = small_model(vocabulary(), width=16, layers=2, seed=0)
    with quiet():
        made.model.save_pretrained(tmp_path)
        made.tokenizer.save_pretrained(tmp_path)
    again = load(str(tmp_path))
    kept = again.model.state_dict()
    assert all(torch.equal(weight, kept[name]) for name, weight in made.model.state_dict().items())
    assert again.tokenizer.encode("Tom has 12") == made.tokenizer.encode("Tom has 12")
