"""A whole zoo in small: a random target with a tokenizer, two drafts, traces, profile and an untrained bundle."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict
from stable_baselines3.common.vec_env import DummyVecEnv
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agents.learning import Learned
from agents.pipeline import export
from agents.ppo import build_learner
from agents.setup import PROJECT, agent_settings, prepare, round_table
from envs.record import Recorder, read_drafts
from envs.zoo.assemble import assemble
from envs.zoo.target import Target, load_target
from envs.zoo.texts import Prompt, Text
from envs.zoo.training import cut_draft
from envs.zoo.writing import write_batch
from runtime.engine.draft_file import SUFFIX, DraftHeader, save_draft
from runtime.engine.draft_net import draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.profile import Profile
from runtime.zoo import Zoo
from tests.factories import make_profile
from tests.tiny import VOCAB, tiny_network

END = 1
DRAFTS = {"one": 1, "two": 2}
"""Drafts by name, with their layers."""


@dataclass(frozen=True)
class TinyZoo:
    """What was built; not to be changed, tests work on copies.

    Attributes:
        target: Folder of the target.
        zoo: The zoo.
        profile: File of a made-up profile.
        bundle: Folder of a bundle with an untrained policy.
    """

    target: Path
    zoo: Zoo
    profile: Path
    bundle: Path

    def config(self, *overrides: str, name: str = "config", zoo: Path | None = None) -> DictConfig:
        """The project's configuration over this zoo, or over a changed copy of its folder."""
        config = composed(
            name,
            f"zoo.folder={zoo or self.zoo.folder}",
            f"device.profile={self.profile}",
            "env.n_envs=1",
            "progress=false",
            *overrides,
        )
        with open_dict(config):
            config.dry_run = config.get("dry_run", False)
        return config


def composed(name: str, *overrides: str) -> DictConfig:
    """A configuration as Hydra composes it."""
    with initialize_config_dir(version_base=None, config_dir=str(PROJECT / "conf")):
        return compose(config_name=name, overrides=list(overrides))


def write_target(folder: Path, seed: int = 0) -> None:
    """A random model and a tokenizer of whole words, ``w3`` to ``w60``."""
    model = tiny_network(seed=seed, eos_token_id=END, max_position_embeddings=256)
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder)
    words = ["<unk>", "<end>", "<user>", *(f"w{index}" for index in range(3, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>"
    )
    fast.chat_template = "<user> {% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(folder)


def write_texts_of(target: Target) -> list[Text]:
    """What the target writes for some prompts: two domains, both splits."""
    torch.manual_seed(0)
    prompts = [
        Prompt(f"{domain}-{split}-{index}", domain, split, "single", f"{domain}-{split}-{index}", 0, "[]")  # type: ignore[arg-type]
        for domain in DRAFTS
        for split, count in (("train", 6), ("heldout", 3))
        for index in range(count)
    ]
    ids: list[list[int]] = torch.randint(3, VOCAB, (len(prompts), 8)).tolist()
    written = write_batch(target.model, ids, 24, target.eos_ids, END)
    return [Text(prompt, given, output, "") for prompt, given, output in zip(prompts, ids, written, strict=True)]


def write_drafts(target: Target, folder: Path) -> None:
    """The first layers of the target, with a part of its vocabulary, untrained."""
    for name, layers in DRAFTS.items():
        net = cut_draft(target.model, layers, torch.arange(0, VOCAB, 3 - layers, dtype=torch.int32))
        header = DraftHeader(name, name, target_fingerprint(target.model), draft_config(target.model, layers), {})
        save_draft(folder / f"{name}{SUFFIX}", header, net.vocab.to(torch.int32), net.weights())


def tiny_profile(zoo: Zoo) -> Profile:
    """Made-up costs of the zoo's drafts."""
    target = zoo.target
    made = make_profile(zoo.draft_names)
    return dataclasses.replace(made, target=target.fingerprint, kv_bytes_per_token=target.kv_bytes_per_token)


def build_tiny_zoo(root: Path) -> TinyZoo:
    """Everything, below ``root``; a few seconds."""
    torch.set_num_threads(1)
    write_target(root / "target")
    target = load_target(str(root / "target"))
    write_drafts(target, root / "drafts")
    fingerprint = target_fingerprint(target.model)
    drafts = read_drafts(root / "drafts", fingerprint)
    recorder = Recorder(fingerprint, target.model.get_input_embeddings(), drafts, target.eos_ids)
    traces = recorder.record(write_texts_of(target), root / "traces.parquet")
    zoo = assemble("tiny", target, (str(root / "target"),), root / "drafts", traces, root / "zoo")
    tiny_profile(zoo).save(root / "profile.json")
    tiny = TinyZoo(root / "target", zoo, root / "profile.json", root / "run" / "bundle")
    write_untrained_bundle(tiny)
    return tiny


def write_untrained_bundle(tiny: TinyZoo) -> None:
    """What ``train.py`` would leave without a single update."""
    config = tiny.config("agent.widths=[8]", "agent.n_steps=16", "agent.batch_size=16", "agent.token_price=1")
    setting = prepare(config)
    vec_env = DummyVecEnv([setting.train.env])
    learner = build_learner(agent_settings(config), vec_env, round_table(setting), 0)
    vec_env.close()
    tiny.bundle.parent.mkdir()
    export(config, setting, agent_settings(config), Learned(learner, ()), tiny.bundle.parent)


def copied(folder: Path, to: Path) -> Path:
    """A copy whose files may be changed (a bundle's own are hard links to the zoo's)."""
    shutil.copytree(folder, to)
    return to


def edit_json(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change a JSON object in place."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
