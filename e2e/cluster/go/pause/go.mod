module headrace.dev/e2e/pause

go 1.24
