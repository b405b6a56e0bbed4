"""The app that `make dev` runs a worker for. In another terminal:

windlass submit shop.greet --payload '{"name": "Ada"}' --wait
"""

from windlass import App

app = App("shop")


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"
