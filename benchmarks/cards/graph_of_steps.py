"""Captures a transformer encoder's inference in a CUDA graph, and replays the graph."""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
model = nn.TransformerEncoder(layer, 6).cuda().half().eval()
given = torch.randn(8, 512, 768, device="cuda", dtype=torch.half)
with torch.no_grad():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            model(given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(given)
    for _ in range(3):
        graph.replay()
