# --- article ---
import torch
import sys

# 假设您的显卡是 16GB
# 我们将尝试分配一个 18GB 的张量
# 18 GB = 18 * 1024 * 1024 * 1024 字节
GB_TO_ALLOCATE = 48 
bytes_to_allocate = GB_TO_ALLOCATE * 1024**3

# PyTorch 张量通常是 float32 (4 字节)
# 我们需要分配 (bytes_to_allocate / 4) 个元素
num_elements = bytes_to_allocate // 4

if not torch.cuda.is_available():
    print("错误：找不到 CUDA 设备。无法执行此实验。")
    sys.exit()

print(f"CUDA 设备: {torch.cuda.get_device_name(0)}")

# 1. 打印您当前的显存情况
total_vram_bytes = torch.cuda.get_device_properties(0).total_memory
free_vram_bytes, _ = torch.cuda.mem_get_info()
print(f"总显存 (Total VRAM，专用GPU内存):   {total_vram_bytes / 1024**3:.2f} GB")
print(f"当前可用 (Free VRAM，专用GPU内存): {free_vram_bytes / 1024**3:.2f} GB")
print("---")
print(f"实验目标：尝试分配一个 {GB_TO_ALLOCATE} GB 的张量到GPU内存...")
print(f"(这需要 {num_elements} 个 float32 元素)")
print("---")
print("按 Enter 键开始尝试分配... (这应该会报错)")
input()

# 2. 尝试分配超大张量
try:
    print("正在尝试分配...")
    # torch.empty 会尝试分配内存，但不会初始化
    # .to('cuda') 是关键步骤，它指示 PyTorch 在 GPU 上分配
    large_tensor = torch.empty(num_elements, dtype=torch.float32).to('cuda')

    # 如果代码能运行到这里，说明您有超过 18GB 的 VRAM
    print("\n!!! 实验意外：分配成功了！!!!")
    print(f"这说明您的可用GPU内存大于 {GB_TO_ALLOCATE}GB。")
    print("请尝试在脚本顶部增加 GB_TO_ALLOCATE 的值再试一次。")

    # 清理内存
    del large_tensor
    torch.cuda.empty_cache()

except torch.cuda.OutOfMemoryError as e:
    print("\n--- 实验成功：捕获到预期的错误 ---")
    print("这证明了 PyTorch 无法在GPU内存 中找到足够的连续空间。")
    print("\n错误详情:")
    print(f"错误类型: {type(e)}")
    print(f"错误信息: {e}")
    print("\n--- 实验结束 ---")

except Exception as e:
    print(f"\n发生了意外的错误: {e}")
