"""kernel placeholder"""
