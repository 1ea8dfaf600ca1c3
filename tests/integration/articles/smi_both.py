# --- article ---
import torch
# 确保使用GPU
if not torch.cuda.is_available():
    print("CUDA不可用")
    exit()
device = torch.device("cuda")
print("--- 1. 初始状态 ---")
# 初始状态,PyTorch可能已经预留了一些内存,也可能没有。
print(torch.cuda.memory_summary(device=device, abbreviated=True))
# --- 2. 首次大块分配 ---
print("\n--- 2. 首次大块分配 (Reserved 显存将增加) ---")
tensor_a = torch.randn(1024 * 1024 * 100, device=device) # 约 400MB
# 此时 nvidia-smi 会看到占用增加,memory_summary会显示 allocated 和 reserved 都增加
print(torch.cuda.memory_summary(device=device, abbreviated=True))
# --- 3. 删除张量 ---
print("\n--- 3. 删除张量 (Allocated 显存减少,Reserved 显存不变) ---")
del tensor_a
# 触发垃圾回收,确保引用被释放
import gc
gc.collect()
# 注意观察此时 Allocated bytes 减少了,但 Reserved bytes 几乎不变 (因为内存进入了缓存池)
print(torch.cuda.memory_summary(device=device, abbreviated=True))
# --- 4. 重新分配 ---
print("\n--- 4. 重新分配 (使用缓存的内存,Reserved 显存不变) ---")
tensor_b = torch.randn(1024 * 1024 * 50, device=device) # 约 200MB
# Allocated bytes 重新增加,但由于使用的是缓存中的空闲块,Reserved bytes 仍然不变。
print(torch.cuda.memory_summary(device=device, abbreviated=True))
# --- article ---
# 示例:释放所有缓存的显存
print("\n--- 5. 清空缓存并释放 Reserved 显存 ---")
torch.cuda.empty_cache()
# 此时 nvidia-smi 看到的占用会大幅下降。
print(torch.cuda.memory_summary(device=device, abbreviated=True))
