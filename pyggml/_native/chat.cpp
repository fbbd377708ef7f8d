// Chat templates, rendered by llama.cpp's own engine for them.

#include "guard.h"

#include "chat.h"
#include "json.h"

#include <cstring>
#include <stdexcept>

struct pyggml_chat {
    common_chat_templates_ptr templates;
    std::string prompt;
};

namespace {

constexpr int max_tag = 8192;   // bytes of one {{ ... }} or {% ... %}
constexpr int max_blocks = 200; // in each other
constexpr int max_branches = 1000;

// The parser and the interpreter are recursive: nested blocks, branches, and whatever an expression consists of take
// stack.
void check_template(const char *at) {
    int blocks = 0, branches = 0;
    while ((at = strchr(at, '{'))) {
        const char kind = at[1];
        if (kind != '{' && kind != '%') {
            at++;
            continue;
        }
        const char *end = strstr(at, kind == '{' ? "}}" : "%}");
        end = end ? end : at + strlen(at);
        if (end - at > max_tag) {
            throw std::runtime_error("a tag of it is longer than " + std::to_string(max_tag) + " bytes");
        }
        int brackets = 0;
        for (const char *c = at + 2; c < end; c++) {
            brackets += strchr("([{", *c) ? 1 : strchr(")]}", *c) ? -1 : 0;
            if (brackets > max_blocks) {
                throw std::runtime_error("too many brackets of it are in each other");
            }
        }
        if (kind == '%') {
            const char *word = at + 2 + strspn(at + 2, "-+ \t\r\n");
            if (strncmp(word, "end", 3) == 0) {
                blocks--;
            } else if (strncmp(word, "el", 2) == 0) {
                branches++;
            } else if (strncmp(word, "set", 3) != 0 && strncmp(word, "break", 5) != 0 &&
                       strncmp(word, "continue", 8) != 0) {
                blocks++;
            }
            if (blocks > max_blocks || branches > max_branches) {
                throw std::runtime_error("too many blocks or branches of it are in each other");
            }
        }
        at = end;
    }
}

} // namespace

enum pyggml_status pyggml_chat_new(const struct llama_model *model, const char *source, struct pyggml_chat **chat) {
    return guard([&] {
        for (const char *name : {"", "tool_use"}) {
            const char *text = source ? source : llama_model_chat_template(model, *name ? name : nullptr);
            if (text) {
                check_template(text);
                common_chat_template(text, "", ""); // says what is wrong with it; below that would be lost
            }
        }
        *chat = new pyggml_chat{common_chat_templates_init(model, source ? source : ""), {}};
        return PYGGML_OK;
    });
}

void pyggml_chat_free(struct pyggml_chat *chat) {
    delete chat;
}

enum pyggml_status pyggml_chat_render(struct pyggml_chat *chat, const char *request, const char **prompt,
                                      size_t *length) {
    return guard([&] {
        const common_json json = common_json::parse(request);
        common_chat_templates_inputs inputs;
        inputs.messages = common_chat_msgs_parse_oaicompat(json.at("messages"));
        if (json.contains("tools")) {
            inputs.tools = common_chat_tools_parse_oaicompat(json.at("tools"));
        }
        inputs.add_generation_prompt = json.at("add_generation_prompt").get<bool>();
        inputs.enable_thinking = json.at("enable_thinking").get<bool>();
        for (const auto &[name, value] : json.at("kwargs").items()) {
            inputs.chat_template_kwargs[name] = value.dump();
        }
        chat->prompt = common_chat_templates_apply(chat->templates.get(), inputs).prompt;
        *prompt = chat->prompt.data();
        *length = chat->prompt.size();
        return PYGGML_OK;
    });
}
