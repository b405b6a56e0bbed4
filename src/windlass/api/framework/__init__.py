"""Routes, forms, cursors and problems, and the OpenAPI document that is made from the routes."""
