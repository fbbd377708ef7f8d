// Grammars are checked before llama.cpp takes them: its parser and its search for left recursion are recursive, what
// they do can grow exponentially, and errors go to the terminal.

#include "guard.h"

#include "llama-grammar.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

constexpr int max_depth = 200;             // of groups in each other, and of rules that begin with rules
constexpr size_t max_elements = 1000000;   // after repetitions are written out; 8 bytes each
constexpr size_t max_expansions = 1000000; // ways to begin a text
constexpr size_t max_repetitions = 2000;   // upstream's MAX_REPETITION_THRESHOLD

const char *skip_comment(const char *at) {
    while (*at && *at != '\n' && *at != '\r') {
        at++;
    }
    return at;
}

// Reads a string or a character class up to `end`. Returns what is after it; `size` is how many characters it has.
const char *skip_quoted(const char *at, char end, size_t &size) {
    size = 0;
    for (at++; *at && *at != end; at++) {
        if (*at == '\\' && at[1]) {
            at++;
        }
        size++;
    }
    return *at ? at + 1 : at;
}

size_t read_number(const char *&at) {
    size_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        value = std::min(value * 10 + (*at - '0'), max_repetitions);
    }
    return value;
}

// How deep groups are nested and how large the grammar becomes, without building anything.
void check_text(const char *at) {
    int depth = 0;
    size_t elements = 0, last = 1; // `last`: characters of the last string or class, which a repetition copies
    while (true) {
        if (elements > max_elements) {
            throw std::runtime_error("it is too large, or repeats too much");
        }
        switch (*at) {
        case '\0':
            return;
        case '#':
            at = skip_comment(at);
            continue;
        case '"':
        case '[':
            at = skip_quoted(at, *at == '"' ? '"' : ']', last);
            elements += last;
            continue;
        case '{': {
            at++;
            while (*at == ' ' || *at == '\t') {
                at++;
            }
            size_t times = read_number(at);
            while (*at == ' ' || *at == '\t' || *at == ',') {
                at++;
            }
            times = std::max(times, read_number(at));
            elements += (last + 3) * times;
            break;
        }
        case '(':
            if (++depth > max_depth) {
                throw std::runtime_error("more than " + std::to_string(max_depth) + " groups are nested in each other");
            }
            last = 1;
            at++;
            break;
        case ')':
            depth--;
            last = 1;
            at++;
            break;
        case '\n':
        case ' ':
        case '\t':
            at++;
            continue;
        default:
            if (!strchr("*+?", *at)) {
                last = 1;
            }
            elements += 3;
            at++;
        }
    }
}

// The rules of a grammar, with what can make upstream recurse or expand without end.
class rule_check {
  public:
    explicit rule_check(const llama_grammar_rules &rules) : rules(rules), nullable(rules.size()), seen(rules.size()) {
        find_nullable();
        for (size_t rule = 0; rule < rules.size(); rule++) {
            visit(rule, 0);
        }
    }

  private:
    enum class state { unseen, running, done };
    struct cost {
        state where = state::unseen;
        size_t expansions = 0;
    };

    static bool ends(const llama_grammar_element &element) {
        return element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT;
    }

    void find_nullable() {
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t rule = 0; rule < rules.size(); rule++) {
                bool empty = true; // the alternative so far
                for (const auto &element : rules[rule]) {
                    if (ends(element)) {
                        if (empty && !nullable[rule]) {
                            nullable[rule] = changed = true;
                        }
                        empty = true;
                    } else {
                        empty = empty && element.type == LLAMA_GRETYPE_RULE_REF && nullable[element.value];
                    }
                }
            }
        }
    }

    size_t visit(size_t rule, int depth) {
        if (seen[rule].where == state::running) {
            throw std::runtime_error("a rule begins with itself (left recursion), which is not supported");
        }
        if (seen[rule].where == state::done) {
            return seen[rule].expansions;
        }
        if (depth > max_depth * 10) {
            throw std::runtime_error("too many rules begin with each other");
        }
        seen[rule].where = state::running;
        size_t expansions = 1;
        bool leading = true;
        for (const auto &element : rules[rule]) {
            if (ends(element)) {
                leading = true;
            } else if (leading) {
                leading = element.type == LLAMA_GRETYPE_RULE_REF && nullable[element.value];
                if (element.type == LLAMA_GRETYPE_RULE_REF) {
                    expansions += visit(element.value, depth + 1);
                }
            }
        }
        if (expansions > max_expansions) {
            throw std::runtime_error("it has too many ways to begin");
        }
        seen[rule] = {state::done, expansions};
        return expansions;
    }

    const llama_grammar_rules &rules;
    std::vector<bool> nullable;
    std::vector<cost> seen;
};

void check_grammar(const llama_vocab *vocab, const char *text, const char *root) {
    check_text(text);
    llama_grammar_parser parser(vocab);
    const char *at = text;
    try {
        while (true) {
            at += strspn(at, " \t\r\n");
            if (*at == '#') {
                at = skip_comment(at);
            } else if (*at) {
                at = parser.parse_rule(at);
            } else {
                break;
            }
        }
    } catch (const std::exception &error) {
        // upstream's reason ends with all that follows
        throw std::runtime_error(std::string(error.what()).substr(0, 200));
    }
    for (const auto &[name, id] : parser.symbol_ids) {
        if (id >= parser.rules.size() || parser.rules[id].empty()) {
            throw std::runtime_error("the rule '" + name + "' is used and not defined");
        }
    }
    if (!parser.symbol_ids.count(root)) {
        throw std::runtime_error(std::string("there is no rule '") + root + "'");
    }
    rule_check{parser.rules};
}

} // namespace

enum pyggml_status pyggml_grammar_new(const struct llama_vocab *vocab, const char *grammar, const char *root,
                                      struct llama_sampler **sampler) {
    return guard([&] {
        check_grammar(vocab, grammar, root);
        *sampler = llama_sampler_init_grammar(vocab, grammar, root);
        return *sampler ? PYGGML_OK : fail(PYGGML_FAILED, "the grammar is not valid");
    });
}
