"""A small causal language model, adapters for it, and texts in several languages."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from babel import Locale
from datasets import load_dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)

LENGTH = 64
"""Tokens in one example: a piece of a page."""
PER_CLIENT, HELD_OUT = 160, 60
"""Examples to train on, and those of which half decide and half are reported."""
PRETRAINING = 600
"""Steps of the base model's training at most, on pages that no client has."""
Config = Mapping[str, Any]


@cache
def pages_of(folder: str, language: str) -> list[str]:
    """The pages in one language: of a folder of texts, or places and currencies from Babel."""
    if folder:
        table = load_dataset(str(Path(folder).expanduser()), split="train")
        known = getattr(table.features["language"], "names", [])
        wanted = known.index(language) if known else language
        rows = table.to_pandas()
        return rows["text"][rows["language"] == wanted].tolist()
    locale = Locale.parse(language)
    names = [*locale.territories.values(), *locale.languages.values(), *locale.currencies.values()]
    return [", ".join(names[i::50]) for i in range(50)]


def examples_of(pages: Sequence[str], tokenizer: Any, most: int) -> torch.Tensor:
    """Pieces of `LENGTH` tokens, shape (n, LENGTH), n <= most."""
    ids: list[int] = []
    for page in pages:
        if len(ids) < most * LENGTH:
            ids += tokenizer(page).input_ids
    number = min(most, len(ids) // LENGTH)
    return torch.tensor(ids[: number * LENGTH]).reshape(-1, LENGTH)


@cache
def load_data(
    folder: str, languages: str, base: str, client: int, clients: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A client's examples: to train on, to decide by, to report."""
    known = languages.split(",")
    language, speakers = known[client % len(known)], -(-clients // len(known))
    pages = [page for i, page in enumerate(pages_of(folder, language)) if i % 4]  # see `pretrain`
    pages = pages[client // len(known) :: speakers]
    examples = examples_of(pages, tokenizer_of(base), PER_CLIENT + HELD_OUT)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(client))
    half = min(HELD_OUT, len(order) // 3) // 2
    decide, report, train = order.split([half, half, len(order) - 2 * half])
    return examples[train], examples[decide], examples[report]


def pretrain(folder: Path, config: Config) -> None:
    """Train a base model on every fourth page of all languages."""
    torch.manual_seed(0)
    tokenizer = ByT5Tokenizer()  # bytes: it needs no files
    languages = config["languages"].split(",")
    pages = (pages_of(config["data"], language)[::4] for language in languages)
    examples = torch.cat([examples_of(some, tokenizer, PER_CLIENT) for some in pages])
    shape = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    shape |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    shape |= {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape))
    passes = min(20, PRETRAINING * 16 / len(examples))  # more would learn few pages by heart
    loss = train(model, examples, passes, 16, 0.003, seed=0)
    print(f"Base model in {folder}: {model.num_parameters():,} parameters, loss {loss:.2f} nats")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@cache
def adapted(base: str, rank: int) -> PeftModel:
    """The base model with new adapters, the same in every process."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(source(base), dtype="auto")
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    model = get_peft_model(model, settings)  # adapters are float32, whatever the base model is
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


@cache
def tokenizer_of(base: str) -> Any:
    """The base model's tokenizer."""
    return AutoTokenizer.from_pretrained(source(base))


def source(base: str) -> str:
    """The base model's folder, or its name on the Hugging Face Hub."""
    folder = Path(base).expanduser()
    return str(folder) if folder.exists() else base


def train(
    model: torch.nn.Module, examples: torch.Tensor, epochs: float, batch: int, lr: float, seed: int
) -> float:
    """Train what is trainable; the mean loss of the last steps."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    rng, losses = torch.Generator().manual_seed(seed), []
    model.train()
    for _ in range(max(1, round(epochs * len(examples) / batch))):
        words = examples[torch.randint(len(examples), (batch,), generator=rng)].to(model.device)
        loss = model(input_ids=words, labels=words).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / len(losses[-20:])


@torch.no_grad()
def loss_on(model: torch.nn.Module, examples: torch.Tensor) -> float:
    """The mean loss of a token, in nats."""
    model.eval()
    batches = examples.to(model.device).split(64)
    losses = [model(input_ids=some, labels=some).loss.item() * len(some) for some in batches]
    return sum(losses) / len(examples)
