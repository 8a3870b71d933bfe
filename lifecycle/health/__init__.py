"""Health checks: pure functions over facts, each giving one Finding."""
