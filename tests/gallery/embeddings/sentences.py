"""A sentence encoder trains with in-batch negatives, then encodes sentences and searches them.

Needs: sentence-transformers, transformers, datasets, accelerate
"""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
    util,
)
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as token_models
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(8000))]


def save_encoder(folder: str) -> None:
    names = {word: i for i, word in enumerate(WORDS)}
    words = Tokenizer(token_models.WordLevel(names, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128
    ).save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(WORDS), num_hidden_layers=6)).save_pretrained(folder)


def sentence(start: int) -> str:
    return " ".join(f"w{(start + j) % 8000}" for j in range(128))


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_encoder(folder)
        words = models.Transformer(folder, max_seq_length=128)
        pooling = models.Pooling(words.get_word_embedding_dimension(), "mean")
        model = SentenceTransformer(modules=[words, pooling], device="cuda")
        pairs = {
            "anchor": [sentence(i * 7) for i in range(128)],
            "positive": [sentence(i * 7 + 3) for i in range(128)],
        }
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=32,
                max_steps=3,
                bf16=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(pairs),
            loss=losses.MultipleNegativesRankingLoss(model),
        )
        trainer.train()
    library = model.encode([sentence(i) for i in range(256)], convert_to_tensor=True)
    found = util.semantic_search(model.encode(sentence(5), convert_to_tensor=True), library)
    assert len(found[0]) == 10
    print("done: 3 steps and a search")


main()
