"""Networks of tokens: ids that travel as float32, rows of a table, what is no row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_cpp,
    outputs_in_torch,
)
from torch import nn  # noqa: E402

from nnstretch.errors import Mismatch  # noqa: E402
from nnstretch.export.cpp.build import run_network  # noqa: E402

WORDS = 97


class Tokens(nn.Module):
    """Rows of two tables, one of them read through a part of the ids, and numbers beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind = nn.Embedding(9, 6), nn.Embedding(5, 6)

    def forward(self, token: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        kinds = self.kind(token[:, ::2]).repeat_interleave(2, 1)
        return torch.cat((self.word(token.view(-1, 4)), kinds), 2) * scale


class Logits(nn.Module):
    """What a language model of transformers says of the next tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=token, use_cache=False).logits


@pytest.mark.slow
def test_rows_of_ids_are_read_and_others_refused(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    inputs = (torch.tensor([[4, 8, 0, 7], [3, 3, 2, 1]]), torch.randn(1))
    module = Tokens()
    computed = outputs_in_cpp(cpp_runtime, module, inputs, tmp_path)
    np.testing.assert_array_equal(computed[0], outputs_in_torch(module, inputs)[0])
    runner, scale = tmp_path / "build" / "run", inputs[1].numpy()
    ids, scales = tmp_path / "ids.npy", tmp_path / "scale.npy"
    np.save(scales, scale)
    files = ["--input", str(ids), "--input", str(scales)]
    for kind in (np.int32, np.int64):
        np.save(ids, inputs[0].numpy().astype(kind))
        run_network(runner, (), 0, [*files, "--output", str(tmp_path / "y.npy")])
        assert np.load(tmp_path / "y.npy").shape == computed[0].shape
    for wrong, refusal in (
        (9, "id 9 is no row of a table of 9"),
        (-1, "id -1 is no row of a table"),
        (1.5, "id 1.5 is no row of a table"),
    ):
        broken = inputs[0].numpy().astype(np.float32)
        broken[1, 3] = wrong
        with pytest.raises(Mismatch, match=refusal):
            run_network(runner, (broken, scale), 1)
    np.save(ids, np.full((2, 4), 1 << 40))
    with pytest.raises(Mismatch, match="whole numbers are at most 2\\^24"):
        run_network(runner, (), 0, files)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_language_models_are_what_transformers_computes(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    family: str,
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "llama":
        size |= {"num_key_value_heads": 2, "intermediate_size": 64}
    config = transformers.AutoConfig.for_model(
        family, vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **size
    )
    module = Logits(transformers.AutoModelForCausalLM.from_config(config))
    inputs = (torch.randint(0, WORDS, (2, 16)),)
    computed = outputs_in_cpp(cpp_runtime, module, inputs, tmp_path)
    assert_close(computed, outputs_in_torch(module, inputs))
