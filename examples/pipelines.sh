#!/bin/sh
# Ingest the handbook, ask twelve questions, print a table (tab-separated). Run from the repository root.
#   COMEM  the command to run (default: comem)
#   MODEL  model to use (default: comem's own choice)
#   SPLIT  split layer (default: comem's own choice)
set -eu

COMEM=${COMEM:-comem}
MODEL=${MODEL:-}
SPLIT=${SPLIT:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
store=$work/handbook

# 1. Write: one JSON event a line on stdout, progress on stderr. $COMEM may hold several words.
$COMEM ingest examples/handbook --store "$store" \
    ${MODEL:+--model "$MODEL"} ${SPLIT:+--split "$SPLIT"} --json >"$work/ingest.jsonl"
python3 -c '
import json, sys
events = [json.loads(line) for line in sys.stdin if line.strip()]
print("ingest", len(events), "events", "last:", json.dumps(events[-1], sort_keys=True), sep="\t")
' <"$work/ingest.jsonl"

# 2. Ask: JSONL in, JSONL out, the model loaded once; the fields "answers" and "path" are passed through.
$COMEM ask "$store" - ${MODEL:+--model "$MODEL"} --json \
    <examples/handbook-questions.jsonl >"$work/answers.jsonl"

# 3. A table that cut, sort and awk understand.
python3 -c '
import json, sys

def cell(text):
    return " ".join(str(text).split())

print("answer_ok", "page_found", "first_source", "answer", "question", sep="\t")
for line in sys.stdin:
    row = json.loads(line)
    sources = row["sources"]
    first = "-"
    if sources:
        lines = sources[0]["lines"]
        first = "%s:%s" % (sources[0]["path"], "-".join(map(str, lines)) if isinstance(lines, list) else lines)
    answer_ok = any(answer.lower() in row["answer"].lower() for answer in row["answers"])
    page_found = any(source["path"] == row["path"] for source in sources)
    print(int(answer_ok), int(page_found), cell(first), cell(row["answer"]), cell(row["question"]), sep="\t")
' <"$work/answers.jsonl" >"$work/table.tsv"
cat "$work/table.tsv"

# 4. The usual tools take it from there: which pages were cited first, and how often?
tail -n +2 "$work/table.tsv" | cut -f 3 | cut -d : -f 1 | sort | uniq -c | sort -rn |
    awk '{ print "cited_first\t" $2 "\t" $1 }'
