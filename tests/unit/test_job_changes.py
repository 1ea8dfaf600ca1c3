"""Tests changes that save memory in distributed scripts: the new text, and unsuitable scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plimsoll.base.units import GiB
from plimsoll.prediction.fitting.changes.batch import batch_changes
from plimsoll.prediction.fitting.changes.jobs import job_changes
from plimsoll.prediction.fitting.changes.precision import precision_changes
from plimsoll.prediction.fitting.changes.recomputing import recomputing_change
from plimsoll.prediction.fitting.changes.stepping import optimizer_changes
from plimsoll.prediction.fitting.script_text import CannotChangeError, ScriptText
from plimsoll.prediction.survey import Recomputation
from tests.unit.job_scripts import DDP, FSDP1, FSDP2, change_of, made, of_ddp, survey


class TestDataParallel:
    """Tests of scripts with DistributedDataParallel."""

    def test_gradients_lie_in_buckets(self) -> None:
        new = made([change_of(of_ddp(), DDP, "buckets")], DDP)
        assert "model = Data(net, device_ids=[0], gradient_as_bucket_view=True)" in new

    def test_those_that_do_already_are_left_alone(self) -> None:
        seen = of_ddp()
        settings: dict[str, Any] = {"gradient_as_bucket_view": True}
        seen.wrappings[0] = replace(seen.wrappings[0], settings=settings)
        names = [change.name for change in job_changes(seen, ScriptText.of(DDP))]
        assert not any("buckets" in name for name in names)

    def test_the_optimizers_state_is_sharded_with_its_settings(self) -> None:
        new = made([change_of(of_ddp(), DDP, "ZeroRedundancyOptimizer")], DDP)
        assert (
            "optimizer = torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), "
            "optimizer_class=torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95))\n"
        ) in new
        assert "import torch.distributed.optim\n" in new

    def test_a_fused_one_is_sharded_too(self) -> None:
        fused = next(each for each in optimizer_changes(of_ddp()) if "fused" in each.name)
        changes = [change_of(of_ddp(), DDP, "ZeroRedundancyOptimizer"), fused]
        assert "optimizer_class=torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95), fused=True)" in made(
            changes, DDP
        )

    def test_the_model_is_sharded_by_layer_and_begins_as_the_first_ranks(self) -> None:
        assert """\
    net = Net().cuda()
    for whole in [*net.parameters(), *net.buffers()]:
        torch.distributed.broadcast(whole.detach(), 0)
    del whole
    for layer in net.layers:
        torch.distributed.fsdp.fully_shard(layer)
    model = torch.distributed.fsdp.fully_shard(net)
    optimizer""" in made([change_of(of_ddp(), DDP, "FSDP2")], DDP)

    def test_a_model_without_a_variable_gets_one(self) -> None:
        text = DDP.replace("Data(net,", "Data(Net().cuda(),")
        new = made([change_of(of_ddp(text), text, "FSDP2")], text)
        assert "    whole_model = Net().cuda()\n    for whole in [*whole_model.parameters()" in new
        assert "    model = torch.distributed.fsdp.fully_shard(whole_model)\n" in new

    def test_the_scripts_own_names_keep_their_values(self) -> None:
        text = DDP.replace("    net = Net", "    layer = size()\n    net = Net")
        new = made([change_of(of_ddp(text), text, "FSDP2")], text)
        assert "    for layer_ in net.layers:\n" in new

    def test_modules_are_recomputed_in_a_sharded_model_too(self) -> None:
        plan = recomputing_change(of_ddp(), Recomputation(["layers.0"], GiB, 0.1), GiB)
        new = made([plan, change_of(of_ddp(), DDP, "FSDP2")], DDP)
        assert 'fully_shard(net)\n    plimsoll.recompute(model, "layers.0")\n' in new

    @pytest.mark.parametrize(
        ("before", "after", "why"),
        [
            ("main()\n", "torch.save(net.state_dict(), 'a')\nmain()\n", "saves its state"),
            ("model(x).mean()", "model.module(x).mean() + model(x).mean()", "inside Distr"),
            ("device_ids=[0]", "process_group=group", "is given process_group"),
            ("model = Data(net, device_ids=[0])", "model = wrap(Data(net))", "another expression"),
        ],
    )
    def test_what_needs_a_whole_model_is_not_sharded(
        self, before: str, after: str, why: str
    ) -> None:
        text = DDP.replace(before, after)
        with pytest.raises(CannotChangeError, match=why):
            made([change_of(of_ddp(text), text, "FSDP2")], text)

    def test_an_optimizer_of_whole_parameters_is_not_left_with_them(self) -> None:
        seen = of_ddp()
        seen.wrappings[0] = replace(seen.wrappings[0], comes_first=False)
        with pytest.raises(CannotChangeError, match="made before the model is wrapped"):
            made([change_of(seen, DDP, "FSDP2")], DDP)

    def test_state_that_is_saved_is_not_sharded(self) -> None:
        text = DDP.replace(
            "        optimizer.zero", "        keep(optimizer.state_dict())\n        optimizer.zero"
        )
        with pytest.raises(CannotChangeError, match="has to be collected first"):
            made([change_of(of_ddp(text), text, "ZeroRedundancyOptimizer")], text)

    def test_results_stay_and_notes_say_what_differs(self) -> None:
        changes = list(job_changes(of_ddp(), ScriptText.of(DDP)))
        assert all(change.keeps_results for change in changes)
        assert "in another order" in change_of(of_ddp(), DDP, "FSDP2").note
        parts = next(iter(batch_changes(of_ddp(), ScriptText.of(DDP))))
        assert "ranks add up gradients after each part" in parts.note

    def test_a_wrapped_models_parameters_keep_their_type(self) -> None:
        assert [each.name for each in precision_changes(of_ddp(), GiB)] == [
            "compute in bfloat16 where that is safe (autocast)"
        ]

    def test_one_rank_shares_nothing(self) -> None:
        assert not list(job_changes(of_ddp(ranks=1), ScriptText.of(DDP)))


class TestFullySharded:
    """Tests of scripts with FSDP."""

    def test_layers_are_whole_for_their_pass_alone(self) -> None:
        new = made([change_of(survey(FSDP2), FSDP2, "free whole parameters")], FSDP2)
        assert "        fully_shard(layer)\n    model = fully_shard(net)\n" in new

    def test_those_that_are_already_are_left_alone(self) -> None:
        text = FSDP2.replace(", reshard_after_forward=False", "")
        (change,) = job_changes(survey(text), ScriptText.of(text))
        assert change.kind == "host"

    def test_all_that_is_sharded_waits_on_the_host(self) -> None:
        new = made([change_of(survey(FSDP2), FSDP2, "host's memory")], FSDP2)
        policy = "offload_policy=torch.distributed.fsdp.CPUOffloadPolicy()"
        assert f"fully_shard(layer, reshard_after_forward=False, {policy})\n" in new
        assert f"fully_shard(net, {policy})\n" in new

    def test_the_first_versions_arguments_keep_their_lines(self) -> None:
        seen = survey(FSDP1, "FullyShardedDataParallel")
        changes = [change_of(seen, FSDP1, part) for part in ("free whole", "host's memory")]
        assert """\
        net,
        sharding_strategy=torch.distributed.fsdp.ShardingStrategy.FULL_SHARD,
        use_orig_params=True,
        cpu_offload=torch.distributed.fsdp.CPUOffload(offload_params=True),
    )
""" in made(changes, FSDP1)

    def test_the_hosts_step_counts(self) -> None:
        assert change_of(survey(FSDP2), FSDP2, "host's memory").unseen_seconds > 0
