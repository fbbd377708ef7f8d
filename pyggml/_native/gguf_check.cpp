#include "gguf_check.h"

#include "gguf_file.h"

#include <cstdio>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <unordered_set>

// The loader reports most of what is wrong with a file by exceptions. The rules below are about the rest: values with
// which it, or the first computation, divides by zero, leaves an array, loops, asserts in a worker thread (where
// nothing can catch that) or allocates what the file cannot justify. They refuse nothing that a real model has.

namespace pyggml {
namespace {

constexpr uint64_t max_layers = 512;    // LLAMA_MAX_LAYERS
constexpr uint64_t max_experts = 1024;  // LLAMA_MAX_EXPERTS
constexpr uint64_t max_patches = 256;   // along a side of an image; real projectors have up to about 100
constexpr uint64_t max_image = 1 << 14; // pixels along a side
constexpr uint64_t unset = 0xffffffff;  // -1
constexpr uint64_t max_int = std::numeric_limits<int32_t>::max();

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool starts_with(const std::string &text, const std::string &begin) {
    return text.compare(0, begin.size(), begin) == 0;
}

float as_float(uint64_t bits) {
    const auto low = static_cast<uint32_t>(bits);
    float value;
    std::memcpy(&value, &low, sizeof(value));
    return value;
}

// The numbers of one file (or of several, if it is split) under one prefix.
class checker {
  public:
    explicit checker(const std::filesystem::path &path);

  private:
    using type = gguf_type;

    void open_splits(const std::filesystem::path &path);
    void check_tensors();
    void check_numbers() const;
    void check_model() const;
    void check_experts() const;
    void check_attention() const;
    void check_rope(uint64_t head) const;
    void check_sizes() const;
    void check_vocabulary() const;
    void check_tokens(const gguf_value &tokens) const;
    void check_adapter() const;
    void check_projector() const;

    const gguf_file &file() const { return *files_[0]; }
    [[noreturn]] void bad(const std::string &key, const std::string &why) const {
        refuse(PYGGML_GGUF_INVALID, quoted(key) + " " + why);
    }
    // A u32; nothing if the key is absent or of another type (which the loader reports).
    std::optional<uint64_t> scalar(const std::string &key) const {
        const gguf_value *value = file().find(prefix_ + key);
        return value && value->type == type::u32 ? std::optional<uint64_t>(value->bits) : std::nullopt;
    }
    // The elements of an array of at most max_layers u32 or i32; none if the key is absent or something else.
    std::vector<uint64_t> numbers(const std::string &key) const {
        const gguf_value *value = file().find(prefix_ + key);
        std::vector<uint64_t> result;
        if (value && value->type == type::array && (value->element == type::u32 || value->element == type::i32) &&
            value->count <= max_layers) {
            files_[0]->seek(value->offset);
            for (uint64_t i = 0; i < value->count; i++) {
                result.push_back(files_[0]->read<uint32_t>("an array"));
            }
        }
        return result;
    }
    void expect(const std::string &key, type expected, const char *name) const {
        const gguf_value *value = file().find(key);
        if (value && value->type != expected) {
            bad(key, std::string("is not of type ") + name);
        }
    }
    // If the key is there, it must be from `low` to `high`.
    void range(const std::string &key, uint64_t low, uint64_t high) const {
        const auto value = scalar(key);
        if (value && (*value < low || *value > high)) {
            bad(prefix_ + key, "is " + number(*value) + ", not from " + number(low) + " to " + number(high));
        }
    }

    // Architectures whose first layer may have no attention; the others divide by its number of heads.
    bool without_heads() const {
        for (const char *arch :
             {"mamba", "rwkv", "jamba", "plamo2", "nemotron_h", "granitehybrid", "falcon-h1", "lfm2", "kimi",
              "bailingmoe3", "glm5-next", "qwen3next", "qwen35", "qwen4exp", "minimax-01", "deci", "wavtokenizer"}) {
            if (arch_.find(arch) != std::string::npos) {
                return true;
            }
        }
        return false;
    }

    std::vector<std::unique_ptr<gguf_file>> files_;
    std::string arch_;
    std::string prefix_;
    uint64_t largest_ = 0; // dimension of any tensor; 0 if there are no tensors
};

checker::checker(const std::filesystem::path &path) {
    files_.push_back(std::make_unique<gguf_file>(path));
    for (const char *key : {"general.architecture", "general.type", "general.name", "tokenizer.ggml.model",
                            "tokenizer.ggml.pre", "tokenizer.chat_template", "adapter.type", "clip.projector_type"}) {
        expect(key, type::string, "string");
    }
    const gguf_value *arch = file().find("general.architecture");
    if (!arch || arch->text.empty()) {
        bad("general.architecture", "is missing");
    }
    arch_ = arch->text;
    prefix_ = arch_ + ".";
    open_splits(path);
    check_tensors();
    check_numbers();
    const gguf_value *kind = file().find("general.type");
    if (kind && kind->text == "adapter") {
        check_adapter();
    } else if (arch_ == "clip") {
        check_projector();
    } else {
        check_model();
        check_vocabulary();
    }
}

// The further files of a split model lie beside the first and are named NAME-00002-of-00003.gguf.
void checker::open_splits(const std::filesystem::path &path) {
    const gguf_value *count = file().find("split.count");
    if (!count || count->type != type::u16 || count->bits < 2) {
        return;
    }
    const auto name = [&](uint64_t i) {
        char text[32];
        std::snprintf(text, sizeof(text), "-%05d-of-%05d.gguf", static_cast<int>(i + 1), static_cast<int>(count->bits));
        return std::string(text);
    };
    const std::string first = path.filename().u8string();
    if (!ends_with(first, name(0))) {
        bad("split.count", "is " + number(count->bits) + ", but the file's name does not end with " + name(0) +
                               ", as the first of them should");
    }
    for (uint64_t i = 1; i < count->bits; i++) {
        const std::string next = first.substr(0, first.size() - name(0).size()) + name(i);
        try {
            files_.push_back(std::make_unique<gguf_file>(path.parent_path() / std::filesystem::u8path(next)));
        } catch (const gguf_error &error) {
            refuse(std::max<int>(error.reason, PYGGML_GGUF_UNREADABLE),
                   "in its part " + quoted(next) + ": " + error.what());
        }
        const gguf_value *number_ = files_.back()->find("split.no");
        if (!number_ || number_->type != type::u16 || number_->bits != i) {
            refuse(PYGGML_GGUF_INVALID, "its part " + quoted(next) + " says that it is another one: 'split.no'");
        }
    }
}

// Types that no operation takes, or only for matrices. The operations assert that in their worker threads. What has to
// be F32 is what upstream's converter never writes in another type.
void checker::check_tensors() {
    enum : uint32_t { f32, f16, q8_1 = 9, q8_k = 15, i8 = 24, i16, i32, i64, f64, bf16 = 30 };
    for (const auto &part : files_) {
        for (const auto &[name, tensor] : part->tensors()) {
            const auto contains = [&text = name](const char *word) { return text.find(word) != std::string::npos; };
            for (const int64_t n : tensor.ne) {
                largest_ = std::max(largest_, static_cast<uint64_t>(n));
            }
            const uint32_t t = tensor.type;
            const bool table = name == "d2t" || contains("tid2eid"); // of numbers of tokens or experts
            const bool lora = ends_with(name, ".lora_a") || ends_with(name, ".lora_b");
            const bool weight = lora || ends_with(name, ".weight") || contains("patch_embd");
            const bool vector = tensor.ne[1] == 1 && tensor.ne[2] == 1 && tensor.ne[3] == 1;
            // a matrix of one row
            const bool row = lora || ((t == f16 || t == bf16) && (contains("cls") || contains("shexp")));
            const bool single = !weight || (vector && !row) || ends_with(name, "_norm.weight") ||
                                contains("ssm_conv1d") || contains("shortconv.conv") || contains("token_types");
            if (t == q8_1 || t == q8_k || t == i8 || t == i16 || t == f64 || (t == i32 || t == i64) != table ||
                (single && !table && t != f32) || (contains("norm") && t != f32 && t != f16 && t != bf16)) {
                refuse(PYGGML_GGUF_INVALID,
                       "tensor " + quoted(name) + " has type " + number(t) + ", which cannot be used for it");
            }
        }
    }
}

// What holds for numbers of every architecture.
void checker::check_numbers() const {
    for (const auto &[key, value] : file().metadata()) {
        if (!starts_with(key, prefix_)) {
            continue;
        }
        if (value.type == type::u32 && value.bits > max_int && value.bits != unset) {
            bad(key, "is " + number(value.bits));
        }
        if (value.type == type::f32 && ends_with(key, "epsilon") && !(as_float(value.bits) >= 0.0f)) {
            bad(key, "is negative or not a number");
        }
    }
}

void checker::check_model() const {
    range("block_count", 1, max_layers);
    for (const char *key : {"pooling_type", "classifier.pooling_type"}) {
        if (scalar(key) != unset) {
            range(key, 0, 4);
        }
    }
    const uint64_t layers = scalar("block_count").value_or(max_layers);
    range("nextn_predict_layers", 0, layers);
    range("n_deepstack_layers", 0, layers);
    range("hyper_connection.sinkhorn_iterations", 0, 1000); // each adds to the graph
    // Divisors. Other architectures' files have a zero there, which they do not use.
    for (const char *arch : {"mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "qwen3next",
                             "qwen35", "qwen35moe", "qwen4exp"}) {
        if (arch_ == arch) {
            range("ssm.group_count", 1, max_int);
        }
    }
    if (arch_ == "afmoe") { // its graph casts the cache to one with a window
        range("attention.sliding_window", 1, max_int);
        if (!scalar("attention.sliding_window")) {
            bad(prefix_ + "attention.sliding_window", "is missing");
        }
    }
    if (arch_ == "deepseek4") {
        range("attention.output_group_count", 1, max_int);
    }
    check_experts();
    check_attention();
    check_sizes();
}

void checker::check_experts() const {
    range("expert_count", 0, max_experts);
    const uint64_t experts = scalar("expert_count").value_or(0);
    range("expert_used_count", 0, experts);
    const uint64_t groups = scalar("expert_group_count").value_or(0);
    if (groups > 1 && (groups >= experts || experts % groups != 0)) {
        bad(prefix_ + "expert_group_count",
            "is " + number(groups) + " and does not divide the " + number(experts) + " experts");
    }
    if (groups > 1) {
        range("expert_group_used_count", 1, groups - 1);
    }
}

void checker::check_attention() const {
    if (scalar("embedding_length") == uint64_t(0)) {
        bad(prefix_ + "embedding_length", "is zero");
    }
    const uint64_t embd = scalar("embedding_length").value_or(0);
    const auto heads = scalar("attention.head_count");
    const auto heads_kv = scalar("attention.head_count_kv");
    if (heads && heads_kv && *heads > 0 && (*heads_kv == 0 || *heads % *heads_kv != 0)) {
        bad(prefix_ + "attention.head_count_kv",
            "is " + number(*heads_kv) + " and does not divide the " + number(*heads) + " heads");
    }
    const std::vector<uint64_t> each = numbers("attention.head_count"); // of each layer; some may have none
    const uint64_t most = heads ? *heads : each.empty() ? 0 : *std::max_element(each.begin(), each.end());
    for (const uint64_t kv : numbers("attention.head_count_kv")) {
        if (kv > most) {
            bad(prefix_ + "attention.head_count_kv",
                "contains " + number(kv) + ", but there are " + number(most) + " heads");
        }
    }
    const uint64_t first = each.empty() ? heads.value_or(0) : each[0];
    if (first == 0 && !without_heads()) {
        bad(prefix_ + "attention.head_count", "is missing or zero");
    }
    if (first > 0) {
        uint64_t head = embd / first;
        for (const char *key : {"key_length", "key_length_mla", "key_length_swa", "key_length_mla_swa"}) {
            head = std::max(head, scalar(std::string("attention.") + key).value_or(0));
        }
        check_rope(head);
    }
}

void checker::check_rope(uint64_t head) const {
    for (const std::string key : {"rope.dimension_count", "rope.dimension_count_swa"}) {
        range(key, 0, head);
        if (scalar(key).value_or(0) % 2 != 0) {
            bad(prefix_ + key, "is odd");
        }
    }
    const std::string key = "rope.dimension_sections";
    const std::vector<uint64_t> sections = numbers(key);
    uint64_t sum = 0;
    for (const uint64_t section : sections) {
        sum = section > head ? section : sum + section; // a negative one is huge
        if (sum > head) {
            bad(prefix_ + key, "are together larger than a head of " + number(head));
        }
    }
    for (const char *arch :
         {"qwen2vl", "paddleocr", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp", "qwen3tts"}) {
        if (arch_ == arch && (sum == 0 || (sections.size() == 4 && sum == sections[3]))) {
            bad(prefix_ + key, "is missing or zero");
        }
    }
}

// Sizes that are allocated without a look at the tensors, which would have to be as large.
void checker::check_sizes() const {
    if (largest_ == 0) {
        return;
    }
    for (const char *key :
         {"embedding_length", "ssm.inner_size", "ssm.state_size", "ssm.conv_kernel", "ssm.time_step_rank",
          "attention.key_length", "attention.value_length", "wkv.head_size", "shortconv.l_cache", "kda.head_dim"}) {
        range(key, 0, largest_);
    }
}

void checker::check_vocabulary() const {
    const gguf_value *model = file().find("tokenizer.ggml.model");
    if (!model) {
        bad("tokenizer.ggml.model", "is missing: the file has no tokenizer");
    }
    if (model->text == "none" || model->text == "no_vocab") {
        if (largest_ > 0) {
            range("vocab_size", 0, largest_);
        } else {
            range("vocab_size", 0, 1 << 24);
        }
        return;
    }
    const gguf_value *tokens = file().find("tokenizer.ggml.tokens");
    if (!tokens) {
        bad("tokenizer.ggml.tokens", "is missing: the file has no vocabulary");
    }
    if (tokens->type != type::array || tokens->element != type::string || tokens->count == 0) {
        bad("tokenizer.ggml.tokens", "is not a list of tokens");
    }
    const auto beside = [&](const char *key, std::initializer_list<type> types) {
        const gguf_value *value = file().find(key);
        if (!value) {
            return;
        }
        if (value->type != type::array || std::find(types.begin(), types.end(), value->element) == types.end()) {
            bad(key, "is not an array of the expected type");
        }
        if (value->count < tokens->count) {
            bad(key, "has " + number(value->count) + " elements for " + number(tokens->count) + " tokens");
        }
    };
    beside("tokenizer.ggml.scores", {type::f32, type::i32});
    beside("tokenizer.ggml.token_type", {type::i32});
    const gguf_value *merges = file().find("tokenizer.ggml.merges");
    if (merges && (merges->type != type::array || merges->element != type::string)) {
        bad("tokenizer.ggml.merges", "is not an array of strings");
    }
    check_tokens(*tokens);
}

// The loader asserts that no token occurs twice. (Empty ones get names of their own there.) Hashes take a tenth of the
// room of the strings, so these are only compared where the hashes are equal.
void checker::check_tokens(const gguf_value &tokens) const {
    gguf_file &source = *files_[0];
    std::vector<uint64_t> hashes(static_cast<size_t>(tokens.count));
    source.seek(tokens.offset);
    for (uint64_t &hash : hashes) {
        hash = source.hash_string();
    }
    std::vector<uint64_t> sorted = hashes;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(sorted.begin(), std::upper_bound(sorted.begin(), sorted.end(), 0u));
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice == sorted.end()) {
        return;
    }
    std::unordered_set<std::string> seen;
    source.seek(tokens.offset);
    for (const uint64_t hash : hashes) {
        uint64_t length = 0;
        const std::string token = source.read_string(max_key, "a token", &length);
        if (std::binary_search(twice, sorted.end(), hash) && length > 0 && !seen.insert(token).second) {
            bad("tokenizer.ggml.tokens", "contains " + quoted(token) + " twice");
        }
    }
}

void checker::check_adapter() const {
    expect("adapter.lora.alpha", type::f32, "f32");
}

// The projector's loader checks neither shapes nor many numbers, and takes tensors as optional that it then needs.
void checker::check_projector() const {
    const auto need = [&](const std::string &name) {
        if (!file().tensors().count(name)) {
            refuse(PYGGML_GGUF_INVALID, "tensor " + quoted(name) + " is missing");
        }
    };
    const auto has = [&](const std::string &name) { return file().tensors().count(name) > 0; };
    const uint64_t largest = std::max<uint64_t>(largest_, 1);
    for (const std::string part : {"vision.", "audio."}) {
        range(part + "block_count", 0, max_layers);
        for (const char *key : {"embedding_length", "attention.head_count", "attention.head_count_kv"}) {
            range(part + key, 1, largest);
        }
        for (uint64_t i = 0; i < scalar(part + "block_count").value_or(0); i++) {
            const std::string layer = part.substr(0, 1) + ".blk." + number(i) + ".";
            if (has(layer + "attn_out.weight") && !has(layer + "attn_qkv.weight")) {
                for (const char *name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) {
                    need(layer + name);
                }
            }
        }
    }
    range("vision.patch_size", 1, max_image);
    range("vision.image_size", 0, scalar("vision.patch_size").value_or(1) * max_patches);
    range("vision.preproc_image_size", 0, max_image);
    if (has("v.blk.0.attn_out.weight")) {
        need("v.patch_embd.weight");
    }
}

} // namespace
} // namespace pyggml

extern "C" int pyggml_gguf_check(const char *path, char *message, size_t size) {
    int reason = PYGGML_GGUF_OK;
    const auto report = [&](int code, const char *text) {
        reason = code;
        if (message && size > 0) {
            std::snprintf(message, size, "%s", text);
        }
    };
    if (message && size > 0) {
        message[0] = '\0';
    }
    try {
        pyggml::checker(std::filesystem::u8path(path));
    } catch (const pyggml::gguf_error &error) {
        report(error.reason, error.what());
    } catch (const std::bad_alloc &) {
        report(PYGGML_GGUF_UNREADABLE, "out of memory while reading metadata");
    } catch (const std::exception &error) {
        report(PYGGML_GGUF_UNREADABLE, error.what());
    }
    return reason;
}
