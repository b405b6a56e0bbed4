"""What a route is: forms, cursors, problems, and the OpenAPI document made from the table."""
