// Chat templates, rendered by llama.cpp's own engine for them.

#include "guard.h"

#include "chat.h"
#include "json.h"

struct pyggml_chat {
    common_chat_templates_ptr templates;
    std::string prompt;
};

enum pyggml_status pyggml_chat_new(const struct llama_model *model, const char *source, struct pyggml_chat **chat) {
    return guard([&] {
        *chat = new pyggml_chat{common_chat_templates_init(model, source ? source : ""), {}};
        return PYGGML_OK;
    });
}

void pyggml_chat_free(struct pyggml_chat *chat) { delete chat; }

enum pyggml_status pyggml_chat_render(struct pyggml_chat *chat, const char *request, const char **prompt) {
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
        *prompt = chat->prompt.c_str();
        return PYGGML_OK;
    });
}
