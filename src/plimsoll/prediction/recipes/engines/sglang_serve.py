"""Serves a model with SGLang, as `sglang serve MODEL ...` does, under a load of made-up requests.

As in SGLang's server, each rank runs one of SGLang's schedulers. The schedulers hold all GPU memory
of the server. The server's other processes, which turn text into tokens and back, do not run. The
script takes the options of `asked_load`, and passes the rest to SGLang.
"""

import sys
from array import array
from typing import Any

import zmq
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.entrypoints.engine import _set_envs_and_config
from sglang.srt.managers.io_struct import (
    AbortReq,
    ShutdownReq,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
    sock_send,
)
from sglang.srt.managers.scheduler import Scheduler, configure_scheduler_process
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, get_schedule, publish, spawn_world_rank
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs, prepare_server_args
from sglang.srt.utils.network import get_zmq_socket

from plimsoll.prediction.recipes.engines.asked_load import (
    STEPS,
    asked_lengths,
    asked_load,
    spread,
    tokens,
)
from plimsoll.prediction.recipes.engines.engine_processes import run_together


class LoadedScheduler(Scheduler):  # type: ignore[misc]
    """SGLang's scheduler of one rank. Rank 0 sends the requests. All ranks end after the load."""

    is_begun = False

    def begin(self, inbox: str, lengths: list[tuple[int, int]] | None) -> None:
        """Sends the first requests. Only rank 0 calls it.

        Args:
            inbox: The address from which the scheduler takes requests.
            lengths: The lengths of each prompt and answer. None gives a load of a hundred steps:
                first as many requests as can run at once, then requests of all lengths.
        """
        self.outbox: Any = get_zmq_socket(zmq.Context.instance(), zmq.PUSH, inbox, True)
        self.sent = self.steps = 0
        self.waits_for_all = lengths is not None
        self.is_begun = True
        most = self.max_running_requests
        budget = get_schedule().chunked_prefill_size
        budget = budget if budget and budget > 0 else self.max_prefill_tokens
        for prompt, answer in lengths or [(budget // most, STEPS)] * most:
            self.send(prompt, answer)
        if lengths == []:
            sock_send(self.outbox, ShutdownReq())

    def send(self, prompt: int, answer: int) -> None:
        """Sends one request, with lengths cut to what the model allows."""
        prompt = max(1, min(prompt, self.max_req_input_len - 1))
        made = array("q", tokens(self.sent, prompt, self.model_config.vocab_size))
        params = SamplingParams(
            max_new_tokens=max(1, min(answer, self.max_req_len - prompt - 1)), ignore_eos=True
        )
        params.normalize(None)
        facts = {"rid": str(self.sent), "input_text": None, "input_ids": made, "mm_inputs": None}
        facts |= {"token_type_ids": None, "sampling_params": params}
        if self.is_generation:
            request = TokenizedGenerateReqInput(
                **facts,
                input_embeds=None,
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                stream=False,
            )
        else:
            request = TokenizedEmbeddingReqInput(**facts)
        sock_send(self.outbox, request)
        self.sent += 1

    def run_batch(self, *arguments: Any, **named: Any) -> Any:
        """Runs one step.

        If the load is a hundred steps, this method also changes the load. After half of the steps,
        it replaces the requests by requests of all lengths. After the last step, it ends the load.
        """
        result = super().run_batch(*arguments, **named)
        if self.is_begun and not self.waits_for_all:
            self.steps += 1
            if self.steps == STEPS // 2:
                sock_send(self.outbox, AbortReq(abort_all=True))
                for length in spread(self.max_running_requests, self.max_req_input_len):
                    self.send(length, STEPS)
            elif self.steps == STEPS:
                sock_send(self.outbox, AbortReq(abort_all=True))
                sock_send(self.outbox, ShutdownReq())
        return result

    def on_idle(self) -> None:
        """Ends the ranks once all requests of the load are answered."""
        super().on_idle()
        is_done = self.is_begun and self.forward_ct and self.is_fully_idle()
        if is_done and not self.gracefully_exit:
            self.is_begun = False
            sock_send(self.outbox, ShutdownReq())


def run_rank(
    place: int,
    settings: ServerArgs,
    ports: PortArgs,
    lengths: list[tuple[int, int]] | None,
) -> None:
    """Starts the scheduler of one rank in this process, and serves the load.

    Args:
        place: The rank among all ranks of tensor and pipeline parallelism.
        settings: The engine's settings.
        ports: The addresses that all ranks share.
        lengths: As for `LoadedScheduler.begin`.
    """
    view = resolving_view(settings)
    gpu = view.base_gpu_id + place * view.gpu_id_step
    stage, rank = divmod(place, view.tp_size)
    world = spawn_world_rank(settings, tp_rank=rank, pp_rank=stage)
    publish(settings, role="scheduler", ranks=SpawnRanks(world_rank=world, gpu_id=gpu))
    configure_scheduler_process(settings, gpu)
    scheduler = LoadedScheduler(settings, ports)
    if place == 0:
        scheduler.begin(ports.scheduler_input_ipc_name, lengths)
    scheduler.run_event_loop()


def asked_settings(arguments: list[str]) -> ServerArgs:
    """Returns SGLang's settings for the arguments of `sglang serve`."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model-path", *arguments]
    load_plugins()
    settings = prepare_server_args(arguments)
    settings.skip_tokenizer_init = True
    settings.resolve_once()
    _set_envs_and_config(settings)
    return settings


def main() -> None:
    """Serves the load. One rank runs in this process. Several ranks get a process each."""
    load, rest = asked_load(sys.argv[1:])
    settings = asked_settings(rest)
    shared = settings, PortArgs.init_new(settings), asked_lengths(load)
    count = settings.tp_size * settings.pp_size
    if count > 1:
        run_together("rank", count, run_rank, *shared)
    else:
        run_rank(0, *shared)


if __name__ == "__main__":  # the processes of the ranks import this file
    main()
