"""What the tests have a model say."""

from __future__ import annotations

LONG = " ".join(f"word{number}" for number in range(60))

HOSTILE = """<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2"> <svg onload=window.hacked=3> <iframe srcdoc="<script>parent.hacked=4</script>"></iframe>
[click](javascript:window.hacked=5) [data](data:text/html,x) <javascript:window.hacked=6> [good](https://example.com/a "title")
<a href="javascript:window.hacked=7">anchor</a> ![picture](https://example.com/b.png) [rel](/v1/models) https://example.com/c.

```html"><script>window.hacked=8</script>
<script>window.hacked = 9</script>
```

| <img src=x onerror=window.hacked=10> | [v](vbscript:x) |
|---|---|
| <b onmouseover=window.hacked=11>b</b> | **bold** |
"""

MARKDOWN = """# Title

Some **bold**, *slanted*, ~~struck~~ and `a*b*c` text, snake_case_name, 2 * 3 * 4.

1. first
   - inner
2. second

```python
print("hello")  # as it is
```

> quoted

| left | right |
|:-----|------:|
| a | 1 |

- [x] done
"""

# Repeated a hundred thousand characters long.
HEAVY = ["**a ", "*a **b ", "***", "_a_", "~~a", "[", "[a](", "![", "<", "(", "`", "`a``b", "\\", "#", "   ", "\n", "\0"]
HEAVY += ["> ", "- ", "> - ", "  - a\n", "1. ", "|", "a|b\n-|-\n", "```\n", "https://a)))", "http://a.b/((("]
