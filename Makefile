# NInfer. `make` builds everything into build/; see CONTRIBUTING.md.
VERSION := 0.1.0
BUILD ?= build
CC ?= cc
AR ?= ar
PREFIX ?= /usr/local
DESTDIR ?=
PYTHON ?= python3

PKGS := libzstd libxxhash libpcre2-8 libutf8proc jansson hwloc numa
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) libedit 2>/dev/null)
LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm
EDIT_LIBS := $(shell pkg-config --libs libedit 2>/dev/null)
CMOCKA_LIBS := $(shell pkg-config --libs cmocka 2>/dev/null)

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror
# -ffp-contract=off: the arithmetic contracts fix where a fused multiply-add happens (docs/arithmetic.md).
BASE_CFLAGS := -std=c17 -O3 -g -fPIC -fopenmp -ffp-contract=off -fvisibility=hidden -pthread -I. -D_GNU_SOURCE \
	-DNF_VERSION='"$(VERSION)"' $(WARN) $(PKG_CFLAGS)
LDFLAGS_ALL := -fopenmp -pthread $(LDFLAGS)
ifeq ($(SAN),1)
BUILD := build-san
BASE_CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS_ALL += -fsanitize=address,undefined
endif

LIB_DIRS := base format cpu runtime converter
MAINS := converter/main.c runner/main_ninfer.c runner/main_run.c runner/main_perplexity.c
LIB_SRC := $(filter-out $(MAINS),$(wildcard $(addsuffix /*.c,$(LIB_DIRS))))
RUNNER_SRC := $(filter-out $(MAINS),$(wildcard runner/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
RUNNER_OBJ := $(RUNNER_SRC:%.c=$(BUILD)/obj/%.o)
BENCH_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard bench/*.c))
RUNNER := $(BUILD)/librunner.a
COMMANDS := $(BUILD)/ninfer $(BUILD)/ninfer-run $(BUILD)/ninfer-convert $(BUILD)/ninfer-perplexity \
	$(BUILD)/ninfer-bench
TEST_SRC := $(wildcard tests/*/test_*.c)
TESTS := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)
TEST_SUPPORT := $(wildcard tests/support/*.c)
TEST_SUPPORT_OBJ := $(TEST_SUPPORT:%.c=$(BUILD)/obj/%.o)
TOOLS := $(patsubst tests/tools/%.c,$(BUILD)/tools/%,$(wildcard tests/tools/*.c))
MODEL := $(BUILD)/tiny-moe.ninfer
VENV := .venv

all: $(COMMANDS) $(BUILD)/libninfer.a $(BUILD)/libninfer.so $(BUILD)/example-generate

# One file for an instruction-set level; everything else is portable.
AVX2_FLAGS := -mavx2 -mfma -mf16c
AVX512_FLAGS := $(AVX2_FLAGS) -mavx512f -mavx512bw -mavx512vl -mavx512vnni
AMX_FLAGS := $(AVX512_FLAGS) -mamx-tile -mamx-int8
$(BUILD)/obj/cpu/%_avx2.o $(BUILD)/obj/bench/%_avx2.o: BASE_CFLAGS += $(AVX2_FLAGS)
$(BUILD)/obj/cpu/%_avx512.o $(BUILD)/obj/bench/%_avx512.o $(BUILD)/obj/tests/support/%_avx512.o: BASE_CFLAGS += $(AVX512_FLAGS)

$(BUILD)/obj/cpu/%_amx.o: BASE_CFLAGS += $(AMX_FLAGS)

# V=1 shows whole commands.
ifeq ($(V),)
Q := @
say = @echo '  $(1)  $(2)'
endif

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(BASE_CFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libninfer.a: $(LIB_OBJ)
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $^
$(BUILD)/libninfer.so: $(LIB_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libninfer.so.0 $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

# An archive, so that only the program that edits lines needs libedit.
$(RUNNER): $(RUNNER_OBJ)
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $^

$(BUILD)/ninfer: $(BUILD)/obj/runner/main_ninfer.o $(RUNNER) $(BUILD)/libninfer.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/ninfer-run: $(BUILD)/obj/runner/main_run.o $(RUNNER) $(BUILD)/libninfer.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS) $(EDIT_LIBS)
$(BUILD)/ninfer-perplexity: $(BUILD)/obj/runner/main_perplexity.o $(RUNNER) $(BUILD)/libninfer.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/ninfer-convert: $(BUILD)/obj/converter/main.o $(BUILD)/libninfer.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/ninfer-bench: $(BENCH_OBJ) $(BUILD)/libninfer.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/example-generate: $(BUILD)/obj/runtime/examples/generate.o $(BUILD)/libninfer.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

# cmocka's macros and a test's helpers do not follow two of our warnings.
TEST_CFLAGS := -Wno-conversion -Wno-missing-prototypes
$(BUILD)/tests/%: tests/%.c $(TEST_SUPPORT_OBJ) $(RUNNER) $(BUILD)/libninfer.a Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(BASE_CFLAGS) $(TEST_CFLAGS) $(CFLAGS) -MMD -MP $< -o $@ $(TEST_SUPPORT_OBJ) $(RUNNER) $(BUILD)/libninfer.a \
		$(LDFLAGS_ALL) $(LIBS) $(CMOCKA_LIBS)
$(BUILD)/tools/%: tests/tools/%.c $(BUILD)/libninfer.a Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(BASE_CFLAGS) $(TEST_CFLAGS) $(CFLAGS) -MMD -MP $< -o $@ $(BUILD)/libninfer.a $(LDFLAGS_ALL) $(LIBS)

# ---- the embedded model ------------------------------------------------------------------------------------------------

$(MODEL): $(BUILD)/ninfer-convert $(wildcard models/tiny-moe/*.json models/tiny-moe/*.jinja models/tiny-moe/*.safetensors)
	@rm -f $@ $@.part-*
	$(Q)$(BUILD)/ninfer-convert models/tiny-moe $@

model: $(MODEL)

# A chat on a terminal, otherwise one answer. PROMPT goes through the environment: no quoting of ours can break it.
export PROMPT
run: $(COMMANDS) $(MODEL)
	@if [ -n "$$PROMPT" ]; then exec $(BUILD)/ninfer-run $(MODEL) --prompt "$$PROMPT"; \
	elif [ -t 0 ]; then exec $(BUILD)/ninfer-run $(MODEL); \
	else echo '> What is the package libcurl4?' && exec $(BUILD)/ninfer-run $(MODEL) --prompt 'What is the package libcurl4?'; fi

# ---- tests ---------------------------------------------------------------------------------------------------------------

$(VENV)/.stamp: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

test-programs: all $(TESTS) $(TOOLS)

test-unit: $(TESTS)
	@passed=0; failed=''; \
	for t in $(TESTS); do \
		echo "== $$t"; \
		if $$t; then passed=$$((passed + 1)); else failed="$$failed $$t"; fi; \
	done; \
	set -- $$failed; echo "unit test programs: $$passed passed, $$# failed"; \
	if [ $$# -gt 0 ]; then printf 'failed: %s\n' "$$@"; exit 1; fi

test-python: test-programs $(MODEL) $(VENV)/.stamp
	NF_BUILD=$(BUILD) $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/python $(PYTEST_ARGS)

# Both suites run even when the first one fails; the exit status covers both.
test: test-programs $(MODEL) $(VENV)/.stamp
	@status=0; $(MAKE) --no-print-directory test-unit || status=1; \
	$(MAKE) --no-print-directory test-python || status=1; exit $$status

# ---- source --------------------------------------------------------------------------------------------------------------

C_FILES := $(wildcard $(addsuffix /*.[ch],$(LIB_DIRS) runner bench runtime/examples tests/*))
LINT_FILES := $(filter-out tests/%,$(filter %.c,$(C_FILES)))

format:
	clang-format -i $(C_FILES)
format-check:
	clang-format --dry-run --Werror $(C_FILES)
lint: $(LINT_FILES:%=%.lint)
%.c.lint: %.c
	@clang-tidy --quiet $< -- $(BASE_CFLAGS) $(if $(findstring _avx2,$*),$(AVX2_FLAGS)) $(if $(findstring _avx512,$*),$(AVX512_FLAGS)) $(if $(findstring _amx,$*),$(AMX_FLAGS))

# ---- installation --------------------------------------------------------------------------------------------------------

# The public header with the one project header that it includes put in its place.
$(BUILD)/ninfer.h: runtime/ninfer.h base/status.h Makefile
	$(Q)awk '/^#include "base\/status.h"$$/ { while ((getline line < "base/status.h") > 0) print line; next } { print }' $< > $@

define PC
prefix=$(PREFIX)
libdir=$${prefix}/lib
includedir=$${prefix}/include

Name: ninfer
Description: Runs Mixture-of-Experts language models stored in .ninfer containers
Version: $(VERSION)
Requires.private: $(PKGS)
Libs: -L$${libdir} -lninfer
Libs.private: -fopenmp -pthread -lm
Cflags: -I$${includedir}
endef
export PC

INSTALL := install
D := $(DESTDIR)$(PREFIX)
install: all $(MODEL) $(BUILD)/ninfer.h
	$(INSTALL) -d '$(D)/bin' '$(D)/lib/pkgconfig' '$(D)/include' '$(D)/share/ninfer' '$(D)/share/doc/ninfer'
	$(INSTALL) -m 755 $(COMMANDS) '$(D)/bin/'
	$(INSTALL) -m 644 $(BUILD)/libninfer.a '$(D)/lib/'
	$(INSTALL) -m 755 $(BUILD)/libninfer.so '$(D)/lib/libninfer.so.$(VERSION)'
	ln -sf libninfer.so.$(VERSION) '$(D)/lib/libninfer.so.0'
	ln -sf libninfer.so.0 '$(D)/lib/libninfer.so'
	printf '%s\n' "$$PC" > '$(D)/lib/pkgconfig/ninfer.pc'
	$(INSTALL) -m 644 $(BUILD)/ninfer.h '$(D)/include/'
	$(INSTALL) -m 644 $(MODEL) '$(D)/share/ninfer/'
	$(INSTALL) -m 644 README.md LICENSE $(wildcard docs/*.md) '$(D)/share/doc/ninfer/'

.SECONDARY: $(TEST_SUPPORT_OBJ)

clean:
	rm -rf build build-san

help:
	@echo 'make                  build the commands and the library into $(BUILD)/'
	@echo 'make run              chat with the embedded model; PROMPT="..." answers once'
	@echo 'make test             unit tests, then pytest; SAN=1: with address and undefined-behaviour sanitizers'
	@echo 'make test-unit, make test-python PYTEST_ARGS="-k name"'
	@echo 'make format, make format-check, make lint'
	@echo 'make install DESTDIR= PREFIX=$(PREFIX)'
	@echo 'make clean'
	@echo 'CC=clang works too (it needs libomp-dev)'

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all clean format format-check help install lint model run test test-programs test-python test-unit
.DELETE_ON_ERROR:
