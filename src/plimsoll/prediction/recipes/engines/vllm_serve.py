"""Serves a model with vLLM, as `vllm serve MODEL ...` does, under a load of made-up requests.

The script takes the options of `asked_load`, and passes the rest to `vllm serve`.
Without such options the load is a hundred steps. In the first half, the largest possible number of
requests runs at the same time. Their prompts together have as many tokens as one step can process.
In the second half, requests of all lengths run.
"""

import argparse
import os
import sys

# The setting 0 makes vLLM's engine run in this process.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import PoolingParams, SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import make_arg_parser
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.network_utils import get_open_port
from vllm.v1.engine.llm_engine import LLMEngine

from plimsoll.prediction.recipes.engines.asked_load import (
    STEPS,
    asked_lengths,
    asked_load,
    spread,
    tokens,
)
from plimsoll.prediction.recipes.engines.engine_processes import run_together

POOLING = ("embed", "classify", "token_embed", "token_classify")


class Load:
    """Sends requests with made-up tokens to an engine."""

    def __init__(self, config: VllmConfig, engine: LLMEngine) -> None:
        self.engine = engine
        self.longest = config.model_config.max_model_len
        self.vocabulary = config.model_config.get_vocab_size()
        self.is_pooling = config.model_config.runner_type == "pooling"
        supported = engine.get_supported_tasks()
        self.task = next((task for task in POOLING if task in supported), POOLING[0])
        self.sent = 0

    def send(self, prompt: int, answer: int) -> None:
        """Sends one request, with lengths cut to what the model allows."""
        prompt = max(1, min(prompt, self.longest - (0 if self.is_pooling else 1)))
        made = tokens(self.sent, prompt, self.vocabulary)
        if self.is_pooling:
            params = PoolingParams(task=self.task)
        else:
            answer = max(1, min(answer, self.longest - prompt))
            params = SamplingParams(max_tokens=answer, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self.sent), {"prompt_token_ids": made}, params)
        self.sent += 1

    def run(self, steps: int | None = None) -> None:
        """Runs the engine until all requests are answered, or for `steps` steps."""
        done = 0
        while self.engine.has_unfinished_requests() and (steps is None or done < steps):
            self.engine.step()
            done += 1

    def stop(self) -> None:
        """Aborts the requests that are not answered yet."""
        self.engine.abort_request([str(number) for number in range(self.sent)])


def asked_settings(arguments: list[str]) -> EngineArgs:
    """Returns the engine's settings for the arguments of `vllm serve`."""
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    options = parser.parse_args(arguments)
    options.model = getattr(options, "model_tag", None) or options.model
    settings = EngineArgs.from_cli_args(options)
    settings.skip_tokenizer_init = not settings.create_model_config().is_multimodal_model
    return settings


def serve(settings: EngineArgs, load: argparse.Namespace) -> None:
    """Starts the engine, and runs the load."""
    config = settings.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    engine = LLMEngine.from_vllm_config(config, usage_context=UsageContext.OPENAI_API_SERVER)
    traffic = Load(config, engine)
    lengths = asked_lengths(load)
    if lengths is not None:
        for prompt, answer in lengths:
            traffic.send(prompt, answer)
        traffic.run()
    else:
        send_all_kinds(traffic, config)


def serve_together(place: int, count: int, port: int, arguments: list[str]) -> None:
    """Runs one of several engines that share a model's experts. Each engine gets the whole load."""
    os.environ["VLLM_DP_RANK"] = str(place)
    os.environ["VLLM_DP_SIZE"] = str(count)
    os.environ["VLLM_DP_MASTER_PORT"] = str(port)
    load, rest = asked_load(arguments)
    settings = asked_settings(rest)
    settings.data_parallel_size = 1  # vLLM takes the size from VLLM_DP_SIZE
    serve(settings, load)


def send_all_kinds(traffic: Load, config: VllmConfig) -> None:
    """Serves as many requests as can run at once, then requests of all lengths.

    Each of these two sets runs for half of the hundred steps.
    """
    most = config.scheduler_config.max_num_seqs
    budget = config.scheduler_config.max_num_batched_tokens
    for _ in range(most):
        traffic.send(budget // most, STEPS)
    traffic.run(STEPS // 2)
    traffic.stop()
    for length in spread(most, traffic.longest):
        traffic.send(length, STEPS)
    traffic.run(STEPS // 2)


def main() -> None:
    """Serves with one engine, or with several if data-parallel engines share a model's experts."""
    load, rest = asked_load(sys.argv[1:])
    settings = asked_settings(rest)
    count = settings.data_parallel_size
    if count > 1 and settings.create_model_config().is_moe:
        run_together("engine", count, serve_together, count, get_open_port(), sys.argv[1:])
        return
    if count > 1:
        print(f"{count} engines that share nothing: one runs, and the others take the same")
        settings.data_parallel_size = 1
    serve(settings, load)


if __name__ == "__main__":  # the engine's workers import this file
    main()
