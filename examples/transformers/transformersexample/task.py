"""A language model of two small layers, and sentences in two orders of words."""

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

SUBJECTS = ["the cat", "the dog", "a bird", "my sister", "our neighbour", "a child", "the teacher"]
VERBS = ["sees", "likes", "finds", "draws", "follows", "hears"]
OBJECTS = ["the river", "a tree", "the moon", "red apples", "the garden", "a small boat", "music"]
TIMES = ["today", "at night", "every day", "in spring", "again", "on sundays"]
PHRASES = [*SUBJECTS, *VERBS, *OBJECTS, *TIMES]
WORDS = ["<end>", *sorted({word for phrase in PHRASES for word in phrase.split()})]
LENGTH = 24
"""Words in one example: some sentences, cut off."""


def first_model() -> GPT2LMHeadModel:
    """Random weights, the same in every run; nothing is downloaded."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS),
            n_positions=LENGTH,
            n_embd=48,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def load_data(partition_id: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """This client's 120 examples to train on and 30 held out, from sentences of its own.

    Every second client has the words in the order object, subject, time, verb instead of time,
    subject, verb, object.
    """
    rng = np.random.default_rng(partition_id)
    numbers = {word: number for number, word in enumerate(WORDS)}
    ids: list[int] = []
    while len(ids) < 150 * LENGTH:
        subject, verb, thing, time = (rng.choice(p) for p in (SUBJECTS, VERBS, OBJECTS, TIMES))
        order = (thing, subject, time, verb) if partition_id % 2 else (time, subject, verb, thing)
        ids += [numbers[word] for word in " ".join([*order, "<end>"]).split()]
    examples = torch.tensor(ids[: 150 * LENGTH]).reshape(150, LENGTH)
    # The same order in every process: an interrupted run can be gone on with exactly.
    order = torch.Generator().manual_seed(partition_id)
    return (
        DataLoader(examples[:120], batch_size, shuffle=True, generator=order),
        DataLoader(examples[120:], batch_size),
    )


def train(model: GPT2LMHeadModel, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train on the training set; the mean loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    losses = []
    for _ in range(epochs):
        for words in loader:
            optimizer.zero_grad()
            loss = model(input_ids=words, labels=words).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def loss_on(model: GPT2LMHeadModel, loader: DataLoader) -> float:
    """The mean loss of a word, in nats."""
    model.eval()
    losses = [model(input_ids=words, labels=words).loss.item() * len(words) for words in loader]
    return sum(losses) / len(loader.dataset)
