"""Says nothing until the level is low."""

from dora import Node

node = Node()
for event in node:
    if event["type"] == "INPUT" and event["id"] == "level":
        level = event["value"][0].as_py()
        if level < 30:
            print(f"只剩 {level}%，小莫要充电！", flush=True)
print("battery 不再说话，我下班了。", flush=True)
