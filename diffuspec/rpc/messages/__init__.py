"""Between values and messages: conversion, batches as prefix deltas, status codes."""
