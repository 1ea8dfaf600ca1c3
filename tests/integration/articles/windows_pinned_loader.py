# --- preamble ---
import time

time.sleep = lambda seconds: None  # nobody watches
# --- article ---
import torch
import time
from torch.utils.data import Dataset, DataLoader

# 1. 创建一个假的“数据集”，它不从磁盘读，只是在RAM中生成数据
# 这样我们可以排除磁盘I/O的瓶颈，专注于内存行为
class FakeDataset(Dataset):
    def __init__(self, num_samples=200):
        self.num_samples = num_samples
        # 每个“样本”是 50MB 的随机数据 (50 * 1024 * 1024) / 4 = 13,107,200 个元素
        self.data = torch.randn(num_samples, 13107200) 
        print(f"在 CPU RAM 中创建了一个 {self.data.nbytes / 1024**2:.2f} MB 的“数据集”")

    def __len__(self):
        return self.num_samples

    def __getitem__(self, idx):
        return self.data[idx]

if __name__ == '__main__':
    # 确保 CUDA 可用，虽然这个实验主要在 CPU 和 锁页内存 上
    print(f"CUDA a可用: {torch.cuda.is_available()}")

    dataset = FakeDataset()

    # 2. 配置 DataLoader
    # num_workers > 0 会启动子进程
    # pin_memory=True 是关键！
    loader = DataLoader(
        dataset,
        batch_size=32,      # 每个批次 32 * 50MB = 1.6GB
        num_workers=8,      # 使用 8 个CPU核心来加载
        pin_memory=True,    # ！！！指示 DataLoader 将数据“钉”在锁页内存中
        prefetch_factor=2   # 每个 worker 预取 2 个批次
    )

    print("\n--- 开始实验 ---")
    print("DataLoader 已启动。")
    print("请立即打开 [任务管理器] -> [性能] -> [GPU]")
    print("观察 [共享 GPU 内存] (Shared GPU Memory) 的使用情况。")
    print("它应该会显著上升！")

    # 3. 循环迭代，模拟训练
    try:
        # 我们只迭代一小部分，然后暂停，让您有时间观察
        for i, data_batch in enumerate(loader):
            print(f"加载了第 {i+1} 批数据...")

            # 在一个真实的训练循环中，您会在这里把数据移到GPU
            # data_batch = data_batch.to('cuda', non_blocking=True)
            # ...然后执行模型前向传播...

            time.sleep(0.5) # 减慢循环，以便观察内存

            if i > 20:
                print("\n已加载超过20个批次。")
                print("现在 [共享 GPU 内存] 应该已经很高了。")
                print("脚本将暂停 60 秒，请尽情观察任务管理器。")
                time.sleep(60)
                print("演示结束。")
                break

    except KeyboardInterrupt:
        print("\n用户停止了实验。")
    except Exception as e:
        print(f"\n发生错误: {e}")
# --- check ---
if "data_batch" in globals():
    print("pinned", data_batch.is_pinned(), "shape", tuple(data_batch.shape))
