# --- article ---
import time
import torch

x = torch.randn(1000, 1000, device='cuda')

# CUDA 操作默认是异步的
start = time.time()
y = x @ x.T  # 矩阵乘法（异步发起）
print(f"异步耗时：{time.time() - start:.6f}s")  # 几乎为 0

# 强制同步（等待 GPU 完成）
start = time.time()
y = x @ x.T
torch.cuda.synchronize()  # 阻塞直到 GPU 完成
print(f"同步耗时：{time.time() - start:.6f}s")  # 真实耗时
# --- check ---
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
y = x @ x.T
end.record()
print("done before", end.query())
torch.cuda.synchronize()
print("done after", end.query())
print("took", begin.elapsed_time(end) > 0)
