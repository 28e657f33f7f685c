/*
 * Renders for differential tests: template_tool IN.json OUT.json
 * IN: [{"template": "...", "vars": {...}}, ...]; OUT: [{"text": "..."} or {"error": "...", "status": "..."},
 * ...]
 */
#include "base/io.h"
#include "runtime/template.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    json_error_t where;
    json_t *in = argc == 3 ? json_load_file(argv[1], JSON_ALLOW_NUL, &where) : NULL, *out = json_array();
    if (!in) return 2;
    for (size_t i = 0; i < json_array_size(in); i++) {
        const json_t *item = json_array_get(in, i), *source = json_object_get(item, "template");
        nf_error err = {0};
        nf_template *t = NULL;
        nf_buf text = {0};
        nf_status status = nf_template_parse(json_string_value(source), json_string_length(source), &t, &err);
        if (!status) status = nf_template_render(t, json_object_get(item, "vars"), &text, &err);
        if (status)
            json_array_append_new(
                out, json_pack("{s:s, s:s}", "error", err.message, "status", nf_status_name(status)));
        else
            json_array_append_new(out,
                                  json_pack("{s:s#}", "text", text.data ? text.data : "", (int)text.len));
        nf_buf_free(&text);
        nf_template_free(t);
    }
    int failed = json_dump_file(out, argv[2], 0);
    json_decref(in);
    json_decref(out);
    return failed ? 1 : 0;
}
