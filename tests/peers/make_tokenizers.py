# make_tokenizers.py - writes tests/golden/tokenizers: small tokenizers, and what the library of
# Hugging Face makes of odd texts with them. tests/spec/tokenizer_spec.lua compares.
#
#   python tests/peers/make_tokenizers.py        (pip install tokenizers==0.23.3)
#
#   gpt2, llama3, qwen   byte-level BPE of 320 tokens, with the split patterns of these models; qwen
#                        composes characters (NFC) first
#   sentencepiece        BPE with a metaspace, byte fallback and a begin token, as of Llama 2
import json
import os

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "golden", "tokenizers")
TEXTS = [
    "Tides come and go.", "", " ", "  two  spaces  ", "a\nb\n\n  c\r\nd", "\tTabs\t\tand\n",
    "it's I'll we've THEY'RE don'T", "12 345 6789 1,234.56", "x=1;y=2 # ok?!", "naïve café",
    "e\u0301 and \u00e9", "Ελληνικά Русский עברית", "日本語のテキスト 中文", "🌊🌘 tide 👩‍🚀",
    "\u00a0nbsp\u2003em", "...!!!???", "CamelCaseAndSNAKE_CASE", "<end>", "a<end>b <end> <end>ing",
    "https://example.org/a?b=c&d=1#e", "the the the tide tide", "\u0000\u0001", "ﬁ ligature Ⅷ ½",
    "   leading", "trailing   ", "new\n\n\nlines \n \n x", "١٢٣ ४५६", "a\u0301\u0323b",
]
GPT2 = None
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    with open(os.path.join(HERE, "..", "golden", "text.txt"), encoding="utf-8") as file:
        return file.read().splitlines() + TEXTS


def byte_level(pattern, normalizer=None):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    if pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=320, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken("<end>", special=True)])
    return t


def sentencepiece():
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)]
    t.train_from_iterator(["▁" + line.replace(" ", "▁") for line in corpus()
                           if line.isascii() and "\0" not in line],
                          trainers.BpeTrainer(vocab_size=400, show_progress=False,
                                              special_tokens=special))
    # the trainer's special tokens of bytes are plain tokens of the model
    parts = json.loads(t.to_str())
    parts["added_tokens"] = [x for x in parts["added_tokens"] if x["id"] < 3]
    t = Tokenizer.from_str(json.dumps(parts))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def main():
    made = {"gpt2": byte_level(GPT2), "llama3": byte_level(LLAMA3),
            "qwen": byte_level(QWEN, normalizers.NFC()), "sentencepiece": sentencepiece()}
    for name, tokenizer in made.items():
        folder = os.path.join(OUT, name)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
            file.write(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")
        rows = []
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            rows.append({"text": text, "ids": ids,
                         "back": tokenizer.decode(ids, skip_special_tokens=True)})
        with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
                       + "\n]\n")


main()
