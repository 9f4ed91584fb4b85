"""A client in a process of its own: tritonclient.http, and nothing of the project.

It asks until the server is gone, and writes a line for every request: how it ended. Some requests
have little time, some are given up by the client, and some come in bursts.

    python serve_client.py ADDRESS SEED IMAGE.npy EXPECTED.npy
"""

from __future__ import annotations

import random
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

CANCELLED = 0.05
WITH_TIMEOUT = 0.10
BURSTS = 0.02
BURST = 6
MOST_TIMEOUT_US = 4_000
GIVES_UP_S = 0.003
KINDS = {
    "requests of soak are open": "queue full",
    "it is ending": "server is ending",
    "deadline": "too late",
    "processor": "no processor left",
    "cancelled": "cancelled",
    "timed out": "given up by its client",
}
GONE = (ConnectionError, OSError, EOFError)


def kind(error: InferenceServerException) -> str:
    message = error.message()
    for words, name in KINDS.items():
        if words in message:
            return name
    return f"error: {' '.join(message.split())}"


class Client:
    def __init__(self, address: str, seed: int, image: np.ndarray, expected: np.ndarray) -> None:
        self.draw = random.Random(seed)
        self.expected = expected
        self.patient = triton.InferenceServerClient(address, concurrency=BURST)
        self.hasty = triton.InferenceServerClient(address, network_timeout=GIVES_UP_S)
        self.tensor = triton.InferInput("image", list(image.shape), "FP32")
        self.tensor.set_data_from_numpy(image)
        self.outputs = [triton.InferRequestedOutput("merged")]

    def judged(self, answer: triton.InferResult) -> str:
        return "answered" if np.array_equal(answer.as_numpy("merged"), self.expected) else "wrong"

    def ask_once(self, client: triton.InferenceServerClient, timeout_us: int | None) -> str:
        try:
            return self.judged(
                client.infer("soak", [self.tensor], outputs=self.outputs, timeout=timeout_us)
            )
        except InferenceServerException as error:
            return kind(error)
        except TimeoutError:
            return "given up by its client"

    def burst(self) -> list[str]:
        ask = self.patient.async_infer
        asked = [ask("soak", [self.tensor], outputs=self.outputs) for _ in range(BURST)]
        ends = []
        for request in asked:
            try:
                ends.append(self.judged(request.get_result()))
            except InferenceServerException as error:
                ends.append(kind(error))
        return ends

    def ask(self) -> list[str]:
        chance = self.draw.random()
        if chance < BURSTS:
            return self.burst()
        if chance < BURSTS + CANCELLED:
            return [self.ask_once(self.hasty, None)]
        if chance < BURSTS + CANCELLED + WITH_TIMEOUT:
            return [self.ask_once(self.patient, self.draw.randint(1, MOST_TIMEOUT_US))]
        return [self.ask_once(self.patient, None)]


if __name__ == "__main__":
    address, seed, image_file, expected_file = sys.argv[1:]
    client = Client(address, int(seed), np.load(image_file), np.load(expected_file))
    assert not any(name.partition(".")[0] == "nnstretch" for name in sys.modules)
    while True:
        try:
            ends = client.ask()
        except GONE:
            break
        for end in ends:
            print(end, flush=True)
